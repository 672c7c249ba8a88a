#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The engine beside llama.cpp (see peers.py), from a checkout alone: builds both, makes the files, prints the table.
#
#   tests/bench/run.sh            three models, six formats, six kinds of work
#   tests/bench/run.sh --quick    SmolLM2, two formats, two kinds of work: two minutes
#   ... --rounds 1 --only 'hidden 2,048'
#   ... --wide                   eleven kinds of work: prompts of 128 and 4,096 tokens, 6,000 deep, 2 and 4 together, too
#   ... --isa avx2               both by a lower instruction set: llama.cpp is built for it, a few minutes
#   ... --only-format F16 --only-work 'decode of 8'
#
# Some two and a quarter hours without --quick, of which each of the three rounds takes a third; the first run makes 9 GB of
# files and builds llama.cpp, some 20 minutes more on two cores. Nothing else should run on the machine.
set -euo pipefail
cd "$(dirname "$0")/../.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/swiftcache
deploy/install-deps.sh --tests >&2
model=$(deploy/fetch-model.sh)
venv=$cache/bench-venv
if [ ! -e "$venv/.ready-with-plots" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 gguf==0.19.0 matplotlib==3.11.2
  touch "$venv/.ready-with-plots"
fi
{
  cmake --preset release
  cmake --build --preset release --target swiftcache-engine-bench
} >&2
mkdir -p build/bench
exec "$venv/bin/python" tests/bench/peers.py --bin build/release/bin --model "$model" --cache "$cache" \
  --json build/bench/peers.json --plot build/bench/peers.svg "$@"
