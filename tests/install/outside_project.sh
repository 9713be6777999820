#!/usr/bin/env bash
# outside_project.sh BUILD SOURCE COMPILER: installs BUILD to a fresh prefix, builds a copy of examples/minimal against it,
# and runs that alone and under the installed `bellows run`: the parameters must have the same bits.
set -euo pipefail

build=$1 source=$2 compiler=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build" --prefix "$prefix" > "$work/install.log" || { cat "$work/install.log"; exit 1; }
# An installed package that leads back to the sources or the build works only on the machine that built it.
if grep -rlF -e "$source/" -e "$build/" "$prefix/lib/cmake" "$prefix/include"; then
  echo "error: the files above name the source or build folder"
  exit 1
fi

cp -r "$source/examples/minimal" "$work/minimal"
env -u CMAKE_PREFIX_PATH cmake -S "$work/minimal" -B "$work/out" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF
grep -q "^Bellows_DIR:PATH=$prefix/" "$work/out/CMakeCache.txt" || { echo "error: another Bellows was found"; exit 1; }
cmake --build "$work/out"

parameters() { grep -o '^parameters [0-9a-f]*$' "$1" || { cat "$1" >&2; echo "error: no parameters in the output of $1" >&2; return 1; }; }
"$work/out/minimal" > "$work/alone" 2>&1
"$prefix/bin/bellows" run -n 2 -- "$work/out/minimal" > "$work/two" 2>&1 || { cat "$work/two"; exit 1; }
sed -i 's/\x1b\[[0-9;]*[A-Za-z]//g; s/.*\(parameters [0-9a-f]*\)$/\1/' "$work/two"
alone=$(parameters "$work/alone")
two=$(parameters "$work/two")
echo "alone: $alone   two ranks: $two"
[ "$alone" = "$two" ]
