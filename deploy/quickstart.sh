#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From nothing to a conversation that outgrows its memory: installs, builds, fetches a model, starts a broker, a gateway
# and three engines on loopback, talks to them, shows who leases memory to whom and takes everything down again.
#   deploy/quickstart.sh                 talk and end
#   deploy/quickstart.sh --serve         keep serving until Ctrl-C
#   deploy/quickstart.sh --model PATH    serve another GGUF file or Hugging Face folder; a plain conversation
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."

die() { echo "quickstart: $*" >&2; exit 2; }
bold='' faint='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' faint=$'\033[2m' plain=$'\033[0m'; fi
gap=$'\n'  # before a headline; an answer brings its own
say() { printf '%s%s== %s%s\n' "$gap" "$bold" "$*" "$plain"; gap=$'\n'; }
explain() { printf '%s%s%s\n' "$faint" "$*" "$plain"; }

serve=false model=
while [ $# -gt 0 ]; do
  case "$1" in
    --serve) serve=true ;;
    --model) [ $# -ge 2 ] || die "--model wants a path"; model=$2; shift ;;
    --model=?*) model=${1#*=} ;;
    -h|--help) sed -n '3,7s/^# \{0,1\}//p' deploy/quickstart.sh; exit 0 ;;
    *) die "unknown argument '$1'; wanted --serve or --model PATH" ;;
  esac
  shift
done
[[ -z $model || $model = /* ]] || model=$here/$model
[ -z "$model" ] || [ -r "$model" ] || die "--model $model cannot be read; wanted: a GGUF file or a Hugging Face folder"

for port in 50050 50051 50061 50062 50063 8000 9180 9181 9182 9183; do
  ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || die "port $port is taken (another quickstart --serve?); stop what listens there"
done

# Build --------------------------------------------------------------------------------------------------------------
bin=build/release/bin
started=$SECONDS
deploy/install-deps.sh
free_kib=$(df -Pk . | awk 'NR==2 {print $4}')
[ "$free_kib" -ge 1048576 ] || [ -x $bin/swiftcachectl ] || die "$PWD has $((free_kib / 1024)) MiB free, wanted 1024 to build; free some"
mkdir -p build
log=build/quickstart.log
cmake --preset release >"$log" 2>&1 || { tail -15 "$log" >&2; die "cmake --preset release failed (above; all of it in $log)"; }
say "building (release)"
# One line of progress: rewritten in place on a terminal, every tenth step elsewhere. (Debian's awk reads pipes by blocks.)
progress() {
  local line
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/ ]] || continue
    if [ -t 1 ]; then printf '\r\033[K%.100s' "$line"
    elif ((BASH_REMATCH[1] % 10 == 0)); then echo "$line"; fi
  done
  [ ! -t 1 ] || echo
}
NINJA_STATUS='[%f/%t %es] ' cmake --build --preset release --target binaries 2>&1 | tee -a "$log" | progress ||
  { grep -A12 -m1 -E 'FAILED|error|No space' "$log" >&2 || tail -15 "$log" >&2; die "the build failed (above; all of it in $log)"; }

leases=false  # another model's tokens take other room: what follows about leases is measured out for this one
[ -n "$model" ] || { model=$(deploy/fetch-model.sh); leases=true; }

# Start --------------------------------------------------------------------------------------------------------------
run='' shm='' pids=() names=() clients=()  # names: by process id
export no_proxy=127.0.0.1  # all that follows is on loopback, where http_proxy is of no use to curl
keep_logs() {
  local kept=build/quickstart-logs
  [ -n "$run" ] && compgen -G "$run/*.log" >/dev/null || return 0  # nothing has started: an earlier run's stay
  { rm -rf $kept && mkdir -p $kept && cp "$run"/*.log $kept/; } 2>/dev/null || return 0
  echo "quickstart: all logs are in $PWD/$kept" >&2 || true
}
finish() {
  local code=$?
  trap '' INT TERM PIPE  # neither a second Ctrl-C nor a reader that has gone cuts this short
  trap - EXIT
  [ ${#pids[@]} -eq 0 ] || echo "quickstart: stopping (at most 10 s)" >&2 || true
  kill "${clients[@]}" "${pids[@]}" 2>/dev/null || true
  for pid in "${clients[@]}" "${pids[@]}"; do  # a drain is bounded by --drain_timeout, so this ends
    wait "$pid" 2>/dev/null || true
  done
  if [ $code -ne 0 ] && [ $code -lt 129 ]; then keep_logs; fi  # it failed; from 129 on it was told to stop
  rm -rf "$run" "$shm"
  exit $code
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
run=$(mktemp -d "${TMPDIR:-/tmp}/swiftcache-quickstart.XXXXXX") || die "cannot make a folder in ${TMPDIR:-/tmp}; is the disk full?"
shm=$(mktemp -d /tmp/swiftcache-shm.XXXXXX) || die "cannot make a folder in /tmp"  # sockets: their paths must be short

start() {  # start NAME HTTP_PORT BINARY FLAGS...; Ctrl-C is for this script alone, which then stops them in order
  local name=$1 http=$2; shift 2
  setsid "$bin/$1" "${@:2}" --http_listen="127.0.0.1:$http" >"$run/$name.log" 2>&1 &
  pids+=($!)
  names[$!]=$name
  eval "pid_${name//-/_}=$!"
}
die_of() { die "$1 $2; its log ends: $(tail -n 1 "$run/$1.log")"; }  # die_of NAME WHAT
healthy() {  # healthy NAME HTTP_PORT
  local pid_name=pid_${1//-/_} deadline=$((SECONDS + 120))
  until grep -qs '^listening' "$run/$1.log" && curl -fs -o "$run/health" "http://127.0.0.1:$2/health"; do
    kill -0 "${!pid_name}" 2>/dev/null || die_of "$1" "ended by itself"
    [ $SECONDS -lt $deadline ] || die_of "$1" "is not healthy after 120 s"
    sleep 0.05
  done
}
engine() {  # engine MODEL_NAME NUMBER FLAGS...
  start "$1" $((9180 + $2)) swiftcache-engine --model="$model" --model_name="$1" --listen=127.0.0.1:$((50060 + $2)) \
    --broker=127.0.0.1:50050 --drain_timeout=5s --shm_dir="$shm" "${@:3}"
}

# Of SmolLM2-135M 16 tokens take 360 KiB in bf16, twice that in f32.
memory=(128MiB 128MiB 128MiB)
! $leases || memory=(10MiB 40MiB 48MiB)
say "starting a broker, a gateway and three engines"
start broker 9180 swiftcache-broker --listen=127.0.0.1:50050 --scale_down_window=1s --max_lease_bytes=8MiB
healthy broker 9180
start gateway 8000 swiftcache-gateway --listen=127.0.0.1:50051 --broker=127.0.0.1:50050 --drain_timeout=5s
engine smollm2-chat 1 --kv_cache_bytes="${memory[0]}" --kv_cache_dtype=bf16
engine smollm2-summary 2 --kv_cache_bytes="${memory[1]}" --kv_cache_dtype=f32
engine smollm2-complete 3 --kv_cache_bytes="${memory[2]}" --kv_cache_dtype=bf16 --block_tokens=32
healthy gateway 8000
healthy smollm2-chat 9181
healthy smollm2-summary 9182
healthy smollm2-complete 9183
ctl=$bin/swiftcachectl

# Tools --------------------------------------------------------------------------------------------------------------
wait_for() {  # wait_for WHAT COMMAND...: slow machines take their time
  local what=$1 deadline=$((SECONDS + 300)); shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || die "waited 300 s for $what"
    sleep 0.05
  done
}
metric() {  # metric HTTP_PORT NAME [LABEL="VALUE"]: its sum
  curl -fs "http://127.0.0.1:$1/metrics" |
    awk -v name="$2" -v label="${3:-}" 'index($0, name "{") == 1 && index($0, label) { sum += $NF } END { printf "%g\n", sum }'
}
leased() {  # leased DONOR: blocks of smollm2-chat that lie there
  "$ctl" lease ls -o json | python3 -c '
import json, sys
print(sum(lease["borrower_blocks"] for lease in json.load(sys.stdin)["leases"]
          if (lease["state"], lease["donor"], lease["borrower"]) == ("GRANTED", sys.argv[1], "smollm2-chat")))' "$1"
}
lines() { grep -c -- "$1" "$2" || true; }

# One conversation, a line at a time. What is printed is also kept, to see where it stands.
turns=0
open_chat() {
  mkfifo "$run/say"
  : >"$run/chat"
  "$ctl" chat --model=smollm2-chat --temperature=0 --max_tokens=64 <"$run/say" > >(tee "$run/chat") 2>&1 &
  clients+=($!) pid_chat=$!
  exec 4>"$run/say"
}
answered() { [ "$(lines '^\[ttft' "$run/chat")" -ge "$turns" ] || ! kill -0 "$pid_chat" 2>/dev/null; }
turn() {  # turn MESSAGE [SHOWN]
  echo "${bold}you>$plain ${2:-$1}"
  echo "$1" >&4
  turns=$((turns + 1))
  wait_for "an answer from smollm2-chat" answered
  [ "$(lines '^\[ttft' "$run/chat")" -eq $turns ] || die "smollm2-chat did not answer (above)"
  gap=''
}
close_chat() {
  exec 4>&-
  wait "$pid_chat" || die "the conversation failed (above)"
}

# Talk ---------------------------------------------------------------------------------------------------------------
say "one request each to smollm2-summary and smollm2-complete (ready after $((SECONDS - started)) s)"
"$ctl" generate --model=smollm2-summary --temperature=0 --max_tokens=32 --prompt="In one sentence, photosynthesis is"
"$ctl" generate --model=smollm2-complete --temperature=0 --max_tokens=32 --prompt="def fibonacci(n):"

say "a conversation with smollm2-chat"
open_chat
turn "Hello! What is a good name for a small robot that waters plants?"
if ! $leases; then
  turn "Nice. Write two sentences about its first day at work."
  turn "Now say that again as if you were a pirate."
  close_chat
else
  . deploy/quickstart-leases.sh
fi
quiet() {
  "$ctl" status -o json | python3 -c '
import json, sys
sys.exit(any(engine["running_requests"] + engine["waiting_requests"] for engine in json.load(sys.stdin)["engines"]))'
}
wait_for "the engines to report that they are idle" quiet
say "the cluster"
"$ctl" status
"$ctl" top --frames=1

if $serve; then
  say "serving until Ctrl-C; try, in another terminal:"
  [ -z "${http_proxy:-}" ] || echo "  export no_proxy=127.0.0.1    # else curl asks the proxy of http_proxy"
  echo "  $PWD/$bin/swiftcachectl chat --model smollm2-chat --temperature 0"
  body='{"model":"smollm2-chat","max_tokens":100,"temperature":0,"stream":true,"messages":[{"role":"user","content":"Hello"}]}'
  echo "  curl -sN http://127.0.0.1:8000/v1/chat/completions -d '$body'"
  echo "  curl -s http://127.0.0.1:9181/metrics | grep -E '^swiftcache_(kv_blocks|lease|prompt_tokens_by_source)'"
  echo "  $PWD/$bin/swiftcachectl top    # and lease ls, lease limit, lease revoke"
  echo "  tail -n 3 $run/*.log"
  echo "  kill $$    # stops everything, as Ctrl-C does here"
  ended='' code=0
  wait -n -p ended "${pids[@]}" || code=$?
  die_of "${names[$ended]}" "ended by itself (exit code $code)"
fi
