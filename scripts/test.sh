#!/usr/bin/env bash
# scripts/test.sh [--sanitize] [--full] [--clang]: installs, builds and runs every test.
#   --sanitize  also under AddressSanitizer + UBSan, and under ThreadSanitizer
#   --full      whole matrices instead of samples
#   --clang     also compiles with clang, which checks the lock annotations
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
presets=(release)
for argument in "$@"; do
  case $argument in
    --sanitize) presets+=(asan tsan) ;;
    --full) export BELLOWS_TEST_FULL=1 ;;
    --clang) presets+=(clang) ;;
    -h|--help) sed -n '2,5s/^# //p' "$0"; exit 0 ;;
    *) echo "error: unknown argument '$argument'; see --help" >&2; exit 2 ;;
  esac
done
"$here/scripts/setup.sh"
export BELLOWS_SKIP_SETUP=1
passed=0; failed=0; skipped=0
for preset in "${presets[@]}"; do
  case $preset in asan) folder=build-asan ;; tsan) folder=build-tsan ;; clang) folder=build-clang ;; *) folder=build ;; esac
  echo "== $preset"
  "$here/scripts/build.sh" "$preset"
  [ "$preset" = clang ] && continue
  log=$here/$folder/test.log
  (cd "$here/$folder" && ctest -j2 --output-on-failure --timeout 300) > "$log" 2>&1 || true
  grep -vE '^ *[0-9]+/[0-9]+ Test +#.* Passed|^ +Start +[0-9]+:' "$log" || true
  passed=$((passed + $(grep -cE 'Test +#.* Passed' "$log" || true)))
  skipped=$((skipped + $(grep -cE 'Test +#.*\*\*\*Skipped' "$log" || true)))
  failed=$((failed + $(grep -cE 'Test +#.*\*\*\*(Failed|Timeout|Exception|Not Run)' "$log" || true)))
  grep -q 'tests passed' "$log" || failed=$((failed + 1))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
