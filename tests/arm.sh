#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what relies on the order of memory accesses for AArch64, and runs its tests under qemu-user: generation words, the
# thread pool, sealed memory, arenas. Exits with 77, and says why, where it cannot. It shows that they compile, use no
# instruction of x86-64 and work; qemu on x86-64 reorders no more than that does, so what a weaker order could break is for
# the argument at ShmGenerations::Advance. The whole engine is not built: its kernels for AVX have no twins yet.
#   tests/arm.sh      # wants g++-aarch64-linux-gnu qemu-user libgtest-dev, and the network once, for Debian's arm64 libraries
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/build/arm
root=$out/root cxx=aarch64-linux-gnu-g++

skip() { echo "tests/arm.sh: SKIPPED: $*" >&2; exit 77; }
command -v $cxx >/dev/null || skip "no $cxx: apt-get install g++-aarch64-linux-gnu"
command -v qemu-aarch64 >/dev/null || skip "no qemu-aarch64: apt-get install qemu-user"
[ -d /usr/src/googletest ] || skip "no /usr/src/googletest: apt-get install libgtest-dev libgmock-dev"

# Libraries for arm64 in a folder of their own, by an apt that knows nothing of this machine's packages.
packages=(libabsl-dev libabsl20220623 libgoogle-glog-dev libgoogle-glog0v6 libgflags-dev libgflags2.2 libunwind8 liblzma5)
fetch() {
  mkdir -p "$out"/apt/{lists,cache/archives}/partial "$out/debs" && : >"$out/apt/status"
  printf 'APT::Architecture "arm64"; APT::Architectures { "arm64"; }; Dir::State::lists "%s/lists"; Dir::State::status "%s/status"; Dir::Cache "%s/cache"; APT::Sandbox::User "root";\n' \
    "$out/apt" "$out/apt" "$out/apt" >"$out/apt.conf"
  export APT_CONFIG=$out/apt.conf
  apt-get -qq update && (cd "$out/debs" && apt-get -qq download "${packages[@]}")
}
if [ ! -e "$root/complete" ]; then
  fetch >"$out.log" 2>&1 || { mkdir -p "$out"; skip "Debian's arm64 libraries could not be fetched: $(tail -n 1 "$out.log")"; }
  for deb in "$out"/debs/*.deb; do dpkg -x "$deb" "$root"; done
  touch "$root/complete"
fi

sources=(common/base/clock.cc engine/memory/{arena,memory_limits,sealed_memory}.cc engine/transport/shm_generations.cc
         engine/backend/cpu/{allowed_cores,core_share,pause_aarch64,thread_pool}.cc
         tests/engine/transport/shm_generations_test.cc tests/engine/backend/cpu/thread_pool_test.cc
         tests/engine/memory/{arena,memory_limits}_test.cc
         /usr/src/googletest/{googletest/src/gtest-all,googlemock/src/gmock-all,googlemock/src/gmock_main}.cc)
flags=(-std=c++20 -O1 -g1 -I. "-I$root/usr/include" -I/usr/src/googletest/{googletest,googlemock} -I/usr/src/googletest/{googletest,googlemock}/include
       -DSWIFTCACHE_VERSION='"0"' "-DSWIFTCACHE_SOURCE_DIR=\"$PWD\"")
object_of() { echo "$out/${1//\//_}.o"; }
for source in "${sources[@]}"; do printf '%s\0-o\0%s\0' "$source" "$(object_of "$source")"; done |
  xargs -0 -P 2 -n 3 $cxx "${flags[@]}" -c
objects=() libraries=()
for source in "${sources[@]}"; do objects+=("$(object_of "$source")"); done
for library in "$root"/usr/lib/aarch64-linux-gnu/lib{absl_*,glog,gflags}.so; do libraries+=("$library"); done
$cxx -o "$out/tests" "${objects[@]}" -Wl,--as-needed "${libraries[@]}" -Wl,--allow-shlib-undefined -lpthread

timeout 300 qemu-aarch64 -L /usr/aarch64-linux-gnu -E "LD_LIBRARY_PATH=$root/usr/lib/aarch64-linux-gnu:/usr/aarch64-linux-gnu/lib" \
  "$out/tests" --gtest_brief=1 --gtest_filter='-*.EveryPageIsResidentFromTheStart'  # qemu's mincore() says of no page that it is
