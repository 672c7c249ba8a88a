#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs what wants a GPU, on a machine that has one: tests/gpu/run.sh [FOLDER]. The binaries are those of FOLDER (default:
# build/cuda); where they are missing and nvcc is there they are built. Says what it skipped; results go to
# $OUT/gpu-results.json (default: build/gpu), from which tests/gpu/results.py writes RESULTS.md. Ten minutes at most.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
export SWIFTCACHE_SOURCE_DIR=$PWD
export LD_LIBRARY_PATH=$PWD/${1:-build/cuda}/lib:${LD_LIBRARY_PATH:-}  # what carry.sh put beside the binaries
folder=${1:-build/cuda}
out=${OUT:-build/gpu}
mkdir -p "$out"
binaries=(tests/gpu_backend_test tests/gpu_golden_test bin/swiftcache-gpu-bench)
for binary in "${binaries[@]}"; do
  [ -x "$folder/$binary" ] && continue
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] ||
    { echo "$folder/$binary is missing, and there is no nvcc to build it: carry it here, see tests/gpu/README.md"; exit 1; }
  cmake --preset cuda && cmake --build --preset cuda --target gpu_backend_test gpu_golden_test swiftcache-gpu-bench || exit 1
done
{
  date --utc +%FT%TZ
  git rev-parse --short HEAD 2>/dev/null
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,ecc.mode.current,power.limit,memory.total --format=csv 2>&1
} | tee "$out/machine.txt"
code=0
for test in gpu_backend_test gpu_golden_test; do
  timeout 240 "$folder/tests/$test" --gtest_output="json:$out/$test.json" > "$out/$test.log" 2>&1
  rc=$?
  grep -E "^\[  (PASSED|SKIPPED|FAILED)|steps compared" "$out/$test.log"
  [ $rc -eq 0 ] || { code=1; echo "$test ended with $rc; $out/$test.log has all of it"; }
done
timeout 240 "$folder/bin/swiftcache-gpu-bench" --json="$out/bench.json" 2>&1 | tee "$out/bench.log"
[ "${PIPESTATUS[0]}" -eq 0 ] || code=1
exit $code
