#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs what wants a GPU, on a machine that has one: tests/gpu/run.sh [FOLDER [PART ...]]. The binaries are those of FOLDER
# (default: build/cuda); where they are missing and nvcc is there they are built. Parts, in this order, of which all run if
# none is named:
#   tests       the CUDA backend's tests and the golden tokens, with the kernels themselves
#   bench       the figures, each beside its bound
#   torch       PyTorch's figures for the same shapes
#   sharing     three engines on the GPU that lease to each other, by cuda_ipc (in f32, in turns and at the same
#               time, and in bf16) and by NCCL: tokens, reclaim, kills
#   large       the same at Qwen3-8B's size, with random weights: longest prompt, first tokens, reclaim of over 1 GiB
#   sanitizer   the tests again under compute-sanitizer: memcheck, and each by itself racecheck
# Ten minutes at most, all together: what there is no time for is skipped, and can be run by its name. Says what it skipped.
# Leaves its logs and JSON in $OUT (default: build/gpu), from which tests/gpu/results.py writes RESULTS.md.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
export SWIFTCACHE_SOURCE_DIR=$PWD
folder=${1:-build/cuda}
[ $# -gt 0 ] && shift
every="tests bench torch sharing large sanitizer"
parts=${*:-$every}
for part in $parts; do
  [[ " $every " == *" $part "* ]] || { echo "tests/gpu/run.sh: no part '$part'; want some of: $every" >&2; exit 2; }
done
out=${OUT:-build/gpu}
mkdir -p "$out"
nvidia-smi -L >/dev/null 2>&1 || { echo "tests/gpu/run.sh: no GPU here; deploy/check-gpu.sh says what is missing" >&2; exit 1; }
machines=${LD_LIBRARY_PATH:-}  # PyTorch finds its own libraries, and is to find no others
# What carry.sh put beside the binaries; cuBLASLt and NCCL of the toolkit, or of PyTorch's packages.
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)/nvidia
for libraries in "$PWD/$folder/lib" /usr/local/cuda/lib64 /usr/local/cuda/lib "$packages"/*/lib; do
  [ -d "$libraries" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
binaries=(tests/gpu_backend_test tests/gpu_golden_test bin/swiftcache-gpu-bench bin/swiftcache-engine bin/swiftcache-broker bin/swiftcache-gateway)
for binary in "${binaries[@]}"; do
  [ -x "$folder/$binary" ] && continue
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] ||
    { echo "$folder/$binary is missing, and there is no nvcc to build it: carry it here, see tests/gpu/README.md"; exit 1; }
  cmake --preset cuda && cmake --build --preset cuda --target "${binaries[@]#*/}" || exit 1
done
SECONDS=0  # building is not measured
identity() { tail -n +2 "$out/machine.txt" 2>/dev/null | cut -d, -f1,2,5-; }  # not how fast it runs at the moment
before=$(identity)
{
  date --utc +%FT%TZ
  git rev-parse --short HEAD 2>/dev/null || echo "no git here"
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,ecc.mode.current,power.limit,memory.total --format=csv 2>&1
} | tee "$out/machine.txt"
[ "$before" = "$(identity)" ] || rm -f "$out"/*.json "$out/skipped.txt"  # of another GPU, or of other code
code=0 ran=' '
wants() { [[ " $parts " == *" $1 "* ]]; }
forget() { [ ! -f "$out/skipped.txt" ] || sed -i "/^[a-z]*: $1: /d" "$out/skipped.txt"; }  # what an earlier run said of it
skip() { forget "$1"; echo "skipped: $1: $2" | tee -a "$out/skipped.txt"; }
part() {  # part PART NAME SECONDS COMMAND...: the log is NAME.log; 1: it failed
  local part=$1 name=$2 seconds=$3 left=$((580 - SECONDS)) rc
  shift 3
  wants "$part" || return 0
  [ $left -ge 15 ] || { skip "$name" "no time left; tests/gpu/run.sh $folder $part"; return 0; }
  echo "--- $name"
  rm -f "$out/$name.json"
  forget "$name"
  ran+="$name "
  timeout -k 15 $((seconds < left ? seconds : left)) "$@" >"$out/$name.log" 2>&1
  rc=$?
  [ $rc -eq 0 ] && return 0
  if [ $rc -eq 124 ] || [ $rc -eq 137 ]; then skip "$name" "cut off after $((seconds < left ? seconds : left)) s"; fi
  echo "failed: $name: it ended with $rc" >>"$out/skipped.txt"
  code=1
  echo "$name ended with $rc; $out/$name.log has all of it"
}
tell() { [[ $ran != *" $1 "* ]] || grep -E "$2" "$out/$1.log"; }  # tell NAME WHAT: of what ran just now

export SWIFTCACHE_TEST_MODEL=${SWIFTCACHE_TEST_MODEL:-${XDG_CACHE_HOME:-$HOME/.cache}/swiftcache/models/SmolLM2-135M-Instruct.Q4_1.gguf}
wants tests && forget "SmolLM2's golden tokens"
if wants tests && [ ! -f "$SWIFTCACHE_TEST_MODEL" ]; then
  skip "SmolLM2's golden tokens" "no $SWIFTCACHE_TEST_MODEL: deploy/fetch-model.sh fetches it, SWIFTCACHE_TEST_MODEL names it"
  unset SWIFTCACHE_TEST_MODEL
fi
for test in gpu_backend_test gpu_golden_test; do
  part tests $test 120 "$folder/tests/$test" --gtest_output="json:$out/$test.json"
  tell $test '^\[  (PASSED|SKIPPED|FAILED)|steps compared'
done
part bench bench 200 "$folder/bin/swiftcache-gpu-bench" --json="$out/bench.json"
tell bench .
if wants torch && ! LD_LIBRARY_PATH=$machines python3 -c 'import torch' 2>/dev/null; then
  skip torch "no PyTorch here"
else
  part torch torch 100 env LD_LIBRARY_PATH="$machines" python3 tests/gpu/torch_bench.py --json "$out/torch.json"
  tell torch .
fi
nccl=$(python3 -c '
import ctypes
version = ctypes.c_int()
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
print(version.value)' 2>/dev/null) || nccl=0
share() {  # share NAME FLAG...
  part sharing "sharing-$1" 90 python3 tests/gpu/sharing.py --bin "$folder/bin" --trace --logs "$out/servers-$1" --json "$out/sharing-$1.json" "${@:2}"
  tell "sharing-$1" . | grep -v ' tokens, the first after '
}
share turns
# Engines run on one GPU at the same time by MPS alone, as they do on one each. Without it they take turns: whoever waits for
# another waits for its turn, too, and NCCL's kernels, which wait for each other, hand over once in a turn: 50 to 200 ms a token.
mps=false
stop_mps() { ! $mps || { mps=false; nvidia-cuda-mps-control <<<quit; }; }
trap stop_mps EXIT
if wants sharing || wants large; then
  export CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps NCCL_DEBUG=WARN
  mkdir -p "$out/mps"
  forget MPS
  if nvidia-cuda-mps-control -d 2>/dev/null; then mps=true; else unset CUDA_MPS_PIPE_DIRECTORY; skip MPS "none here: engines take turns on the GPU"; fi
fi
share cuda_ipc
share bf16 --dtype bf16
if [ "$nccl" -ge 23000 ]; then
  share nccl --transport nccl
elif wants sharing; then
  found="NCCL $((nccl / 10000)).$((nccl / 100 % 100)).$((nccl % 100))"
  [ "$nccl" -gt 0 ] || found="no NCCL here"
  skip sharing-nccl "$found; several engines on one GPU want 2.30 or later"
fi
part large sharing-large 200 python3 tests/gpu/large_sharing.py --bin "$folder/bin" --json "$out/sharing-large.json"
tell sharing-large .
stop_mps
unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY NCCL_DEBUG
sanitizer=$(command -v compute-sanitizer || find /usr/local/cuda/bin -name compute-sanitizer 2>/dev/null)
if wants sanitizer && [ -z "$sanitizer" ]; then
  skip sanitizer "no compute-sanitizer here"
else
  # Not those that end a child: what the sanitizer has put into it waits there for ever.
  part sanitizer sanitizer-memcheck 150 "$sanitizer" --tool memcheck --error-exitcode 9 "$folder/tests/gpu_backend_test" --gtest_filter='-*CallersBug'
  tell sanitizer-memcheck 'ERROR SUMMARY|^\[  (PASSED|FAILED)'
  part sanitizer sanitizer-racecheck 200 tests/gpu/racecheck.sh "$sanitizer" "$folder/tests/gpu_backend_test" "$out/racecheck"
  tell sanitizer-racecheck .
fi
[ "$ran" != ' ' ] || { echo "tests/gpu/run.sh: nothing ran" >&2; code=1; }
exit $code
