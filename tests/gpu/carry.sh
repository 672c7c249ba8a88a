#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts what tests/gpu/run.sh runs, and the libraries that a bare machine lacks, into one folder to carry there:
#   tests/gpu/carry.sh [FOLDER]          default: build/gpu-carry; stripped, at most 60 MB
# There: tests/gpu/run.sh build/gpu-carry
set -euo pipefail
cd "$(dirname "$0")/../.."
to=${1:-build/gpu-carry}
cmake --preset cuda >/dev/null
cmake --build --preset cuda --target swiftcache-engine swiftcache-broker swiftcache-gateway swiftcache-gpu-bench gpu_tests
rm -rf "$to"
mkdir -p "$to/bin" "$to/tests" "$to/lib"
strip -o "$to/tests/gpu_backend_test" build/cuda/tests/gpu_backend_test
strip -o "$to/tests/gpu_golden_test" build/cuda/tests/gpu_golden_test
for name in swiftcache-engine swiftcache-broker swiftcache-gateway swiftcache-gpu-bench; do
  strip -o "$to/bin/$name" "build/cuda/bin/$name"
done
# Not the C and C++ libraries: those are the machine's own, which its compiler brings too.
ldd "$to"/bin/* "$to"/tests/* | awk '$2 == "=>" {print $3}' | sort -u |
  grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|libgcc_s|libstdc\+\+|ld-linux[^/]*)\.so' | while read -r library; do
  strip -o "$to/lib/$(basename "$library")" "$(readlink -f "$library")"
done
bytes=$(du -sb "$to" | cut -f1)
echo "$to: $bytes bytes"
[ "$bytes" -le 60000000 ] || { echo "more than 60 MB"; exit 1; }
LD_LIBRARY_PATH=$to/lib env -i LD_LIBRARY_PATH="$to/lib" "$to/bin/swiftcache-engine" --version
