#!/usr/bin/env bash
# scripts/test.sh [--sanitize] [--full] [--clang]: installs, builds and runs every test.
#   --sanitize  also under AddressSanitizer + UndefinedBehaviorSanitizer, and under ThreadSanitizer
#   --full      whole matrices instead of samples (BELLOWS_TEST_FULL=1)
#   --clang     also compiles with clang, which checks the lock annotations
# Ends with "N passed, N failed, N skipped" over all builds; exit code 0 if nothing failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
presets=(release)
setup=()
for argument in "$@"; do
  case $argument in
    --sanitize) presets+=(asan tsan) ;;
    --full) export BELLOWS_TEST_FULL=1 ;;
    --clang) presets+=(clang); setup+=(--clang) ;;
    -h|--help) sed -n '2,6s/^# //p' "$0"; exit 0 ;;
    *) echo "error: unknown argument '$argument'; see --help" >&2; exit 2 ;;
  esac
done
"$here/scripts/setup.sh" "${setup[@]}"

# What a sanitizer finds must fail the test, with a trace.
# (No detect_stack_use_after_return: g++ 12 aligns its stand-in stack to 32 bytes, and AVX-512 variables fault there.)
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1:suppressions=$here/scripts/tsan.supp}

passed=0; failed=0; skipped=0
for preset in "${presets[@]}"; do
  folder=$here/build
  [ "$preset" = release ] || folder=$here/build-$preset
  printf '\n== %s: build\n' "$preset"
  BELLOWS_SKIP_SETUP=1 "$here/scripts/build.sh" "$preset"
  [ "$preset" = clang ] && continue
  printf '\n== %s: tests\n' "$preset"
  log=$folder/test.log
  (cd "$folder" && ctest -j2 --output-on-failure --timeout 300) > "$log" 2>&1 || true
  grep -vE '^ *[0-9]+/[0-9]+ Test +#.* Passed|^ +Start +[0-9]+:' "$log" || true
  # Why tests were skipped, in their own words.
  awk '/^\[ RUN      \]/ {name = $4} /: Skipped$/ {getline why; print "skipped: " name ": " why}' \
    "$folder/Testing/Temporary/LastTest.log" 2> /dev/null || true
  # "98% tests passed, 1 tests failed out of 52"; skipped ones count as passed there.
  read -r bad all < <(sed -n 's/.* tests passed, \([0-9]*\) tests failed out of \([0-9]*\)$/\1 \2/p' "$log"; echo "1 1")
  left_out=$(grep -cE 'Test +#.*\*\*\*(Skipped|Not Run \(Disabled\))' "$log" || true)
  failed=$((failed + bad))
  skipped=$((skipped + left_out))
  passed=$((passed + all - bad - left_out))
done
printf '\n%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
