#!/usr/bin/env bash
# scripts/gpu-check.sh: builds with CUDA, runs every test and benchmark that needs a GPU, and prints one table.
# Without a GPU it says so and exits 0: what a GPU would have shown is then not covered. Exits 1 if a check fails.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$here/build-gpu
case ${1:-} in
  -h|--help) sed -n '2,3s/^# //p' "$0"; exit 0 ;;
  '') ;;
  *) echo "error: unexpected '$1'; see --help" >&2; exit 2 ;;
esac
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
if [ -z "$nvcc" ]; then
  echo "not covered: no nvcc on this host, so the CUDA plugin was not built and no GPU was used"
  exit 0
fi

rows=()
failed=0
row() { rows+=("$(printf '%-34s %-12s %s' "$1" "$2" "$3")"); }
table() { printf '\n%-34s %-12s %s\n' check result detail; printf '%s\n' "${rows[@]}"; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "building the CUDA plugin and its tests in $folder (log: shown if it fails)"
if cmake -S "$here" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBELLOWS_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" > "$log" 2>&1 &&
   cmake --build "$folder" -j "$(nproc)" --target bellows_cuda base_tests optimizer_tests gpu_collectives >> "$log" 2>&1; then
  row "CUDA plugin builds and links" passed "$("$nvcc" --version | grep -o 'release [0-9.]*')"
else
  tail -n 40 "$log" >&2
  row "CUDA plugin builds and links" FAILED "see above"
  table
  exit 1
fi

# The device tests name the CUDA devices that they found; with none there is only the CPU.
gpus=$("$folder/bin/base_tests" --gtest_list_tests --gtest_filter='Host/AnyDevice.*' | grep -c '/Cuda' || true)
if [ "$gpus" -eq 0 ]; then
  why=$("$folder/bin/base_tests" --gtest_filter='CudaDevices.*' 2>&1 | grep -o 'no GPU.*' | head -n 1)
  table
  echo
  echo "not covered: ${why:-no GPU on this host}; kernels, streams, copies and the collectives of nccl and cuda-ipc were"
  echo "compiled and linked but not run"
  "$folder/bin/gpu_collectives" | sed 's/^not covered: /nccl, cuda-ipc: /'
  exit 0
fi

check() {  # NAME PROGRAM FILTER
  local out
  if out=$(timeout 300 "$folder/bin/$2" --gtest_filter="$3" 2>&1); then
    row "$1" passed "$(grep -o '[0-9]* tests\? from .* ran.*' <<< "$out" | head -n 1)"
  else
    failed=1
    row "$1" FAILED "$folder/bin/$2 --gtest_filter='$3'"
    echo "$out" | tail -n 30 >&2
  fi
}
check "devices, streams, copies, kernels" base_tests 'Host/AnyDevice.*/Cuda*'
check "optimizers: same bits as the CPU" optimizer_tests '*GivesTheSameBitsOnEveryDevice*'
# Sums held bit for bit against a plain loop; cuda-ipc also with several ranks on one GPU.
for ranks in 2 4; do
  if out=$(timeout 600 "$folder/bin/gpu_collectives" "$ranks" 2>&1); then
    row "nccl, cuda-ipc ($ranks ranks)" passed "$(grep -c 'same bits' <<< "$out") measurements, all with the same bits"
  else
    failed=1
    row "nccl, cuda-ipc ($ranks ranks)" FAILED "$folder/bin/gpu_collectives $ranks"
  fi
  echo "$out"
done
table
exit "$failed"
