#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the build does not refuse by itself: who touches bytes of a device, who names a backend, what is left of the
# preprocessor, how a test starts a process, where it stands. Prints each line that breaks a rule; exit code 1 where there is one.
set -uo pipefail
shopt -s lastpipe  # rule runs in this shell: in a subshell its code=1 would be lost
cd "$(dirname "$0")/.."
code=0
rule() {  # rule TEXT, with the offending lines on standard input
  local lines; lines=$(cat)
  [ -z "$lines" ] && return
  printf '%s:\n%s\n' "$1" "$lines"
  code=1
}

git grep -nE 'address_space\.h|AddressSpace' -- '*.h' '*.cc' ':!engine/backend' ':!engine/transport' ':!tests' |
  rule 'only engine/backend and engine/transport turn a device address into a pointer'
git grep -nE 'backend/(cpu|cuda)/|backend::(cpu|cuda)' -- '*.h' '*.cc' ':!engine/backend' ':!engine/transport' ':!services' ':!tests' |
  rule 'above engine/backend and engine/transport only services names a backend'
git grep -nE '^[[:space:]]*#[[:space:]]*(if|ifdef|ifndef|elif)\b' -- '*.h' '*.cc' |
  grep -vE 'HWY_TARGET|_ONCE$|ifndef (MADV|F_SEAL)_' | rule 'a variant is a file, not a preprocessor switch'
git grep -nE 'preexec_fn[[:space:]]*=' -- tests/e2e tests/bench | rule 'no preexec_fn beside gRPC: its poller may abort what Python forks'
# Tests of engine/kv stand in tests/engine/kv. Two folders have tests of several rooms at once.
rooms=" $(git grep -hoE '^room_library\([a-z0-9_/]+' -- '*CMakeLists.txt' | cut -d'(' -f2 | tr '\n' ' ')"
git ls-files -- 'tests/*_test.cc' ':!tests/cluster' ':!tests/sim' | while read -r test; do
  room=$(dirname "${test#tests/}")
  if [[ $rooms != *" $room "* ]]; then
    echo "$test: there is no room $room"
  elif ! grep -qE "^#include \"(tests/)?$room/[a-z0-9_]+\.h\"" "$test"; then
    echo "$test: nothing of $room is included"
  fi
done | rule 'a test stands at the path of its room, below tests, and includes a header of that room or a fixture beside it'
exit $code
