#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what SwiftCache builds and runs with, from Debian 12's own packages. Safe to repeat.
#   deploy/install-deps.sh           what deploy/quickstart.sh needs
#   deploy/install-deps.sh --tests   and what tests/run.sh needs
#   deploy/install-deps.sh --cuda    and whether the preset cuda can be built: NVIDIA's toolkit is not Debian's to install
set -euo pipefail

BUILD=(ca-certificates curl git dpkg-dev file g++ cmake ninja-build ccache mold pkg-config python3 python3-pip
       protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libgrpc++-dev libabsl-dev libgoogle-glog-dev
       prometheus-cpp-dev libgtest-dev libgmock-dev libbenchmark-dev libdnnl-dev libhwy-dev libpcre2-dev
       libutf8proc-dev nlohmann-json3-dev libboost-dev libssl-dev libcli11-dev zlib1g-dev)
TESTS=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev libomp-14-dev llvm-14 python3-venv valgrind)

die() { echo "install-deps: $*" >&2; exit 2; }

[ $# -le 1 ] && [[ "${1:-}" =~ ^(--tests|--cuda)?$ ]] || die "unknown argument '$*'; usage: deploy/install-deps.sh [--tests|--cuda]"
[ -r /etc/os-release ] || die "no /etc/os-release: SwiftCache's packages come from Debian 12; use Debian 12 (a container will do)"
# shellcheck disable=SC1091
. /etc/os-release
if [ "${ID:-}" != debian ] || [ "${VERSION_ID:-}" != 12 ]; then
  die "this is ${PRETTY_NAME:-an unknown system}; wanted: Debian 12, whose library versions the build relies on; use Debian 12 (a container will do)"
fi

if [ "${1:-}" = --cuda ]; then
  nvcc=$(command -v nvcc || find /usr/local/cuda/bin -name nvcc 2>/dev/null || true)
  [ -n "$nvcc" ] || die "the preset cuda wants NVIDIA's CUDA Toolkit 12.4 to 13.x (nvcc, cudart, cuBLASLt's headers), in PATH or /usr/local/cuda; from https://developer.nvidia.com/cuda-downloads, then run this again"
  echo "install-deps: nvcc is $nvcc; where engines run, deploy/check-gpu.sh says what is missing"
fi
wanted=("${BUILD[@]}")
[ "${1:-}" = --tests ] && wanted+=("${TESTS[@]}")
missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install-deps: all ${#wanted[@]} packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "packages are missing (${missing[*]}) and this is not root and there is no sudo; run it as root"
  as_root=(sudo)
fi
as_root+=(env DEBIAN_FRONTEND=noninteractive)
for name in http_proxy https_proxy no_proxy; do  # else sudo drops them, and apt-get does not reach what this user reaches
  [ -z "${!name:-}" ] || as_root+=("$name=${!name}")
done
echo "install-deps: installing ${#missing[@]} of ${#wanted[@]} packages: ${missing[*]}"
log=$(mktemp "${TMPDIR:-/tmp}/swiftcache-apt.XXXXXX")
trap 'rm -f "$log"' EXIT
# Another package manager at work is waited for rather than stumbled over. apt-get itself waits for the lock of packages alone,
# not for that of the lists, which a fresh machine fetches unasked: update tries again.
apt() { "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 -qq "$@" >>"$log" 2>&1; }
update() {
  local deadline=$((SECONDS + 300))
  until apt update; do
    if ! grep -q /lists/lock "$log" || [ $SECONDS -ge $deadline ]; then return 1; fi
    : >"$log"
    sleep 1
  done
}
update || { tail -5 "$log" >&2; die "apt-get update failed (above): is the network there?"; }
apt install -y --no-install-recommends "${missing[@]}" || { tail -15 "$log" >&2; die "apt-get install failed (above)"; }
echo "install-deps: done"
