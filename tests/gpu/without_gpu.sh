#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the CUDA build says where there is no GPU: tests/gpu/without_gpu.sh build/cuda MODEL. Prints what is wrong.
set -uo pipefail
folder=$1 model=$2
code=0
wrong() { echo "$1"; code=1; }
engine=("$folder/bin/swiftcache-engine" --model "$model" --broker= --listen=127.0.0.1:0 --http_listen=127.0.0.1:0 --kv_cache_bytes=64MiB)

said=$(CUDA_VISIBLE_DEVICES='' "${engine[@]}" --backend=cuda 2>&1); rc=$?
[ $rc -eq 2 ] || wrong "--backend=cuda ended with $rc, wanted 2"
[ "$(printf '%s\n' "$said" | grep -cv '\] flags: ')" -eq 1 ] || wrong "--backend=cuda said more than a line: $said"
[[ $said == *"no GPU can be used"*"--backend=cpu"* ]] || wrong "--backend=cuda does not say why and what to do: $said"

said=$(CUDA_VISIBLE_DEVICES='' timeout -s TERM 10 "${engine[@]}" --backend=auto --drain_timeout=0s 2>&1)
[[ $said == *"--backend=auto takes the CPU: no GPU can be used"* ]] || wrong "--backend=auto does not say that it takes the CPU: $said"
[[ $said == *"computes on cpu/"* ]] || wrong "--backend=auto does not compute on the CPU: $said"

said=$(CUDA_VISIBLE_DEVICES='' "$folder/bin/swiftcache-gpu-bench" 2>&1); rc=$?
[ $rc -eq 3 ] || wrong "the benchmark ended with $rc, wanted 3"
for test in gpu_backend_test gpu_golden_test; do
  said=$(CUDA_VISIBLE_DEVICES='' "$folder/tests/$test" 2>&1)
  [[ $said == *"[  SKIPPED ]"* ]] || wrong "$test is not skipped: $said"
done
said=$(CUDA_VISIBLE_DEVICES='' "$folder/tests/gpu_status_test" 2>&1) || wrong "gpu_status_test failed: $said"
exit $code
