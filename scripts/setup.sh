#!/usr/bin/env bash
# Installs the Debian packages that building, testing and the demo need. Quick, and without network, when nothing is missing.
set -euo pipefail

packages=(
  build-essential cmake ninja-build pkg-config git ca-certificates
  libspdlog-dev libprotobuf-dev protobuf-compiler libgrpc++-dev protobuf-compiler-grpc
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libdnnl-dev libopenblas-dev libhwloc-dev libxxhash-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  libopenmpi-dev openmpi-bin            # a start by mpirun, and the peer of the collectives' benchmark
  librsvg2-bin fonts-dejavu-core        # pictures as PNG
  bible-kjv                             # the demo's text
)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || { echo "error: missing packages: ${missing[*]}; run this as root or install sudo" >&2; exit 1; }
    root=(sudo)
  fi
  echo "installing: ${missing[*]}"
  "${root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
fi
command -v nvcc > /dev/null || [ -x /usr/local/cuda/bin/nvcc ] || echo "not covered: GPU devices (no CUDA Toolkit on this machine)"
