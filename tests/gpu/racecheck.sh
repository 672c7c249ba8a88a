#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests of a binary under racecheck, each in a process of its own, several at once: tests/gpu/racecheck.sh SANITIZER BINARY FOLDER
# Racecheck reports hand-overs within NVIDIA's kernels, too, and fails of itself where it is told to pass them over, so
# what it reports is judged here. A line for each test; its log is in FOLDER. Exit code 1: a race in a kernel of ours, or
# a test that failed or did not end.
set -uo pipefail
sanitizer=$1 binary=$2 folder=$3
mkdir -p "$folder"
export SWIFTCACHE_TEST_FEW_CASES=1

check() {  # check SANITIZER BINARY FOLDER TEST
  local log=$3/$4.log said ours
  "$1" --tool racecheck "$2" --gtest_filter="$4" >"$log" 2>&1
  # A test that asks nothing of the GPU ends "before first instrumented API call".
  said=$(grep -oE 'RACECHECK SUMMARY: .*|terminated before first instrumented API call' "$log")
  ours=$(grep -A 1 'Race reported' "$log" | grep swiftcache)
  echo "$4: ${said:-no summary}${ours:+, ours: $ours}"
  [ -n "$said" ] && [ -z "$ours" ] && grep -qE '^\[  PASSED  \] 1 test' "$log"
}
export -f check
# Not those that end a child: what the sanitizer has put into it waits there for ever.
"$binary" --gtest_list_tests | awk '/^[^ ]/ {suite = $1} /^ / {print suite $1}' | grep -v CallersBug |
  xargs -P 4 -I{} bash -c 'check "$@" || { echo "failed: {}"; exit 1; }' check "$sanitizer" "$binary" "$folder" {} || exit 1
