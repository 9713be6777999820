#!/usr/bin/env bash
# scripts/setup.sh [--clang]: installs the Debian packages that building, testing and the demo need.
# Quick, and without network, when nothing is missing.   --clang: also the compiler that checks the lock annotations
set -euo pipefail

needed=(
  build-essential cmake ninja-build pkg-config git ca-certificates
  libspdlog-dev libprotobuf-dev protobuf-compiler libgrpc++-dev protobuf-compiler-grpc
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libdnnl-dev libhwloc-dev libxxhash-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
useful=(                                  # each with what is lost without it
  "libopenmpi-dev:a start by mpirun without the bellows command"
  "libucx-dev:messages between hosts over UCX (RDMA and TCP)"
  "openmpi-bin:the comparison of collectives with Open MPI"
  "librsvg2-bin:pictures as PNG (they are SVG only)"
  "fonts-dejavu-core:pictures with proper letters"
  "bible-kjv:the demo's text (give your own: scripts/demo.sh --data FILE)"
)
for argument in "$@"; do
  case $argument in
    --clang) needed+=(clang-14) ;;
    -h|--help) sed -n '2,3s/^# //p' "$0"; exit 0 ;;
    *) echo "error: unknown argument '$argument'; see --help" >&2; exit 2 ;;
  esac
done

is_installed() { dpkg-query -W -f='${Status}' "$1" 2> /dev/null | grep -q 'install ok installed'; }

root=()                                   # how to become root
[ "$(id -u)" -eq 0 ] || root=(sudo)

apt_install() {
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" > "$log" 2>&1
}

missing=()
for package in "${needed[@]}"; do is_installed "$package" || missing+=("$package"); done
wanted=()
for entry in "${useful[@]}"; do is_installed "${entry%%:*}" || wanted+=("${entry%%:*}"); done

# Without root only what is needed is a reason to stop.
if [ "$(id -u)" -ne 0 ] && ! command -v sudo > /dev/null; then
  [ ${#missing[@]} -eq 0 ] || { echo "error: missing packages: ${missing[*]}; run scripts/setup.sh as root or install sudo" >&2; exit 1; }
  wanted=()
fi
if [ ${#missing[@]} -gt 0 ] || [ ${#wanted[@]} -gt 0 ]; then
  command -v apt-get > /dev/null || { echo "error: there is no apt-get here; missing: ${missing[*]} ${wanted[*]}" >&2; exit 1; }
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  echo "installing:" "${missing[@]}" "${wanted[@]}"
  "${root[@]}" apt-get update -qq -o DPkg::Lock::Timeout=300 > "$log" 2>&1 || { cat "$log" >&2; echo "warning: apt-get update failed; trying with the lists that are there" >&2; }
  if [ ${#missing[@]} -gt 0 ] && ! apt_install "${missing[@]}"; then
    cat "$log" >&2
    echo "error: apt-get could not install: ${missing[*]}" >&2
    exit 1
  fi
  # One by one only if not all together: one that this machine cannot have must not cost the others.
  if [ ${#wanted[@]} -gt 0 ] && ! apt_install "${wanted[@]}"; then
    for package in "${wanted[@]}"; do apt_install "$package" || true; done
  fi
fi
for entry in "${useful[@]}"; do
  is_installed "${entry%%:*}" || echo "not here: ${entry#*:}; package ${entry%%:*} could not be installed"
done
command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ] || echo "not here: GPU devices; there is no CUDA Toolkit on this machine"
