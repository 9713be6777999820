#!/usr/bin/env bash
# Bellows in one command: installs what is missing, builds, and trains a transformer on English text with ranks that
# shard their state, are released where they do not pay, are lost and come back. Safe to run twice.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
out=$here/bellows-out
data=()
prove=no
steps=${DEMO_STEPS:-700}

usage() {
  cat <<EOF
Usage: scripts/demo.sh [--data FILE...] [--prove] [--out DIR]

  --data FILE...  train on your own text instead of the King James Bible (Debian's bible-kjv)
  --prove         train the same once more with one undisturbed rank, and compare every loss and all parameters bit by bit
  --out DIR       where metrics, picture and checkpoints go (default: bellows-out)
EOF
}
while [ $# -gt 0 ]; do
  case $1 in
    --data) shift; while [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; do data+=("$(realpath "$1")"); shift; done ;;
    --prove) prove=yes; shift ;;
    --out) [ $# -ge 2 ] || { echo "error: --out needs a directory" >&2; exit 2; }; out=$(realpath -m "$2"); shift 2 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "error: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
done

say() { printf '\n== %s\n' "$*"; }

say "Packages and build"
"$here/scripts/setup.sh"
BELLOWS_SKIP_SETUP=1 "$here/scripts/build.sh" release
bin=$here/build/bin

mkdir -p "$out"
if [ ${#data[@]} -eq 0 ]; then
  [ -s "$out/bible.txt" ] || { bible -f 'gen1:1-rev22:21' > "$out/bible.txt.new"; mv "$out/bible.txt.new" "$out/bible.txt"; }
  data=("$out/bible.txt")
fi
rm -rf "$out/checkpoints" "$out"/*.jsonl "$out"/loss.* "$out/ranks"

# 0.8 M parameters: small, so that two cores are done in two minutes.
train=("$bin/gpt-train" --data "${data[@]}" --layers 4 --heads 4 --dim 128 --seq 128 --micro-batch 4 --lanes 8
       --steps "$steps" --lr 0.003 --warmup 25 --seed 1 --stage 2 --precision bf16)

say "Training: 4 ranks on $(nproc) cores, ZeRO-2; ranks that do not pay are released"
echo "A threshold of 75 % MFU is more than 4 ranks on few cores reach with so small a model, so the coordinator will act."
began=$(date +%s)
"$bin/bellows" run -n 4 --min 1 --max 4 --policy mfu-guard --ladder 2,4 --mfu-threshold 0.75 --window 2 --windows 3 \
  --straggler-gate 1 --job demo-$$ --log-dir "$out/ranks" --events "$out/events.jsonl" -- \
  "${train[@]}" --metrics "$out/metrics.jsonl" --checkpoint "$out/checkpoints" --checkpoint-every 100 \
  --eval-every 100 --sample 400 > "$out/sample.txt" &
job=$!
trap 'kill $job 2>/dev/null || true' EXIT

# Once the world has settled and half the steps are done, one rank is killed: what any machine does sooner or later.
committed() { tail -n 1 "$out/metrics.jsonl" 2>/dev/null | sed -n 's/^{"step":\([0-9]*\),.*/\1/p' || true; }
victim=""
while kill -0 $job 2>/dev/null; do
  step=$(committed); step=${step:-0}
  if [ -z "$victim" ] && [ "$step" -ge $((steps * 55 / 100)) ]; then
    victim=$("$bin/bellows" ctl status --job demo-$$ | awk '$5 == "training" {pid = $4} END {print pid}' || true)
    if [ -n "$victim" ]; then
      printf '\n== At step %s: killing the process of one rank (pid %s) on purpose\n' "$step" "$victim"
      kill -KILL "$victim" 2>/dev/null || true
    fi
  fi
  sleep 0.2
done
trap - EXIT
wait $job || { echo "error: training failed; the output of every rank is in $out/ranks" >&2; exit 1; }
ended=$(date +%s)

if [ $prove = yes ]; then
  say "Proof: the same training once more, one rank, nothing happens to it"
  "${train[@]}" --metrics "$out/undisturbed.jsonl" --eval-every 100 --threads "$(nproc)" > /dev/null
  # Steps that were repeated after the loss count once: the last time.
  losses() { sed -n 's/^{"step":\([0-9]*\),.*"loss_bits":"\([0-9a-f]*\)".*/\1 \2/p' "$1" | awk '{b[$1]=$2} END {for (s in b) print s, b[s]}' | sort -n; }
  digests() { sed -n 's/.*"params_digest":"\([0-9a-f]*\)","optimizer_digest":"\([0-9a-f]*\)".*/\1 \2/p' "$1"; }
  if diff <(losses "$out/metrics.jsonl") <(losses "$out/undisturbed.jsonl") > /dev/null &&
     [ "$(digests "$out/metrics.jsonl")" = "$(digests "$out/undisturbed.jsonl")" ]; then
    echo "identical: $(losses "$out/metrics.jsonl" | wc -l) losses, parameters and optimizer state $(digests "$out/metrics.jsonl")"
  else
    echo "error: the two runs differ; compare $out/metrics.jsonl with $out/undisturbed.jsonl" >&2
    exit 1
  fi
fi

say "Result ($((ended - began)) s of training)"
"$bin/bellows" report "$out/metrics.jsonl"
printf '\nWritten by the model:\n'
fold -s -w 100 "$out/sample.txt" | sed 's/^/  | /'
say "Picture"
"$bin/bellows" plot "$out/metrics.jsonl" -o "$out/loss.svg" --title "Bellows demo"
newest=$(find "$out/checkpoints" -maxdepth 1 -name 'step-*' | sort | tail -n 1)
say "Checkpoint"
echo "$newest"
echo "Resume it with more steps, on any number of ranks and any stage:"
echo "  $bin/bellows run -n 2 -- ${train[*]} --steps $((steps + 200)) --resume $newest"
