#!/usr/bin/env bash
# scripts/build.sh [release|debug|asan|tsan|clang]: configures and builds a preset (CMakePresets.json); release by default.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
preset=${1:-release}
[ -n "${BELLOWS_SKIP_SETUP:-}" ] || "$here/scripts/setup.sh"
cd "$here"
options=()
[ "${CI:-}" = true ] && options+=(-DBELLOWS_WERROR=ON)
cmake --preset "$preset" "${options[@]}" > "/tmp/bellows-configure.$$" 2>&1 || { cat "/tmp/bellows-configure.$$"; rm -f "/tmp/bellows-configure.$$"; exit 1; }
grep 'Bellows' "/tmp/bellows-configure.$$" || true
rm -f "/tmp/bellows-configure.$$"
cmake --build --preset "$preset" -j "$(nproc)"
