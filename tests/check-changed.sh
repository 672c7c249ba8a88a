#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What costs too much to be asked of every file each time: whether a header compiles alone, and clang-tidy (.clang-tidy
# says what it refuses). Wants the headers that build/release has generated.
#   tests/check-changed.sh          the files of the last commits, the newest first, for less than a minute of two cores
#   tests/check-changed.sh --all    every file
set -uo pipefail
cd "$(dirname "$0")/.."
all=false max_headers=24 max_sources=8 commits=20
case "${1:-}" in
  '') ;;
  --all) all=true max_headers=100000 max_sources=100000 ;;
  *) echo "tests/check-changed.sh: unknown argument '$1'; wanted: nothing, or --all" >&2; exit 2 ;;
esac

known=$(git rev-list --count HEAD)
if ! $all && [ "$known" -le $commits ] && [ "$(git rev-parse --is-shallow-repository)" = true ]; then
  # The oldest commit of a shallow clone says of every file that it is new.
  echo "tests/check-changed.sh: SKIPPED: a shallow clone with $known commits, wanted more than $commits: git fetch --unshallow, or --all"
  exit 77
fi

list() {  # list PATTERN...: those that are there, the newest first
  { if $all; then git ls-files -- "$@"; else git log -n $commits --format= --name-only -- "$@"; fi; } |
    awk '!seen[$0]++' | while read -r file; do [ -e "$file" ] && echo "$file"; done
}
flags=(-std=c++20 -I. -Ibuild/release -isystem build/release/proto '-DSWIFTCACHE_VERSION="0"' "-DSWIFTCACHE_SOURCE_DIR=\"$PWD\"")
export flags_line="${flags[*]}"
cuda=()  # what includes CUDA's headers is looked at where they are
echo '#include <cublasLt.h>' | g++ -fsyntax-only -x c++ - 2>/dev/null ||
  { cuda=(':!engine/backend/cuda/native' ':!services/cuda_engine_device.cc'); echo "no CUDA headers here: leaving out ${cuda[*]#:!}"; }
mapfile -t headers < <(list '*.h' "${cuda[@]}")
mapfile -t sources < <(list '*.cc' ':!tests' "${cuda[@]}")  # a test may do what the product must not
code=0

alone() {  # by g++, which finds what clang forgives, and the other way round
  # shellcheck disable=SC2086  # flags
  echo "#include \"$1\"" | g++ -fsyntax-only -Werror -Wall -x c++ $flags_line - || { echo "$1 does not compile alone"; return 1; }
}
tidy() {
  # shellcheck disable=SC2086
  clang-tidy-14 --quiet "$1" -- $flags_line 2>/dev/null
}
export -f alone tidy
printf '%s\n' "${headers[@]:0:max_headers}" | xargs -r -P "$(nproc)" -I{} bash -c 'alone {}' || code=1
printf '%s\n' "${sources[@]:0:max_sources}" | xargs -r -P "$(nproc)" -I{} bash -c 'tidy {}' || code=1
shown() { echo "$(($2 < $3 ? $2 : $3)) of $2 $1"; }
echo "looked at $(shown headers ${#headers[@]} $max_headers) and $(shown sources ${#sources[@]} $max_sources)$($all || echo " of the last $commits commits")"
exit $code
