#!/usr/bin/env bash
# scripts/build.sh [release|debug|asan|tsan|clang]: configures and builds a preset of CMakePresets.json; release by default.
# Programs land in build/bin (build-PRESET/bin for the others). With CI=true warnings are errors.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=${1:-release}
case $preset in
  release) folder=build ;;
  debug|asan|tsan|clang) folder=build-$preset ;;
  -h|--help) sed -n '2,3s/^# //p' "$0"; exit 0 ;;
  *) echo "error: unknown preset '$preset'; one of: release debug asan tsan clang" >&2; exit 2 ;;
esac
if [ -z "${BELLOWS_SKIP_SETUP:-}" ]; then
  setup=()
  [ "$preset" = clang ] && setup+=(--clang)
  "$here/scripts/setup.sh" "${setup[@]}"
fi
cd "$here"
options=()
[ "${CI:-}" = true ] && options+=(-DBELLOWS_WERROR=ON)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" "${options[@]}" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
grep 'Bellows' "$log" || true
cmake --build --preset "$preset" -j "$(nproc)"
echo "built: $here/$folder/bin"
