#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From nothing to a conversation: installs, builds, fetches a model, starts a broker, a gateway and three engines on
# loopback, talks to them, shows the cluster and takes everything down again.
#   deploy/quickstart.sh                 talk and end
#   deploy/quickstart.sh --serve         keep serving until Ctrl-C
#   deploy/quickstart.sh --model PATH    serve another GGUF file or Hugging Face folder
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."

die() { echo "quickstart: $*" >&2; exit 2; }
bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }

serve=false model=
while [ $# -gt 0 ]; do
  case "$1" in
    --serve) serve=true ;;
    --model) [ $# -ge 2 ] || die "--model wants a path"; model=$2; shift ;;
    -h|--help) sed -n '3,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) die "unknown argument '$1'; wanted --serve or --model PATH" ;;
  esac
  shift
done
[[ -z $model || $model = /* ]] || model=$here/$model
[ -z "$model" ] || [ -r "$model" ] || die "--model $model cannot be read; wanted: a GGUF file or a Hugging Face folder"

# Build --------------------------------------------------------------------------------------------------------------
bin=build/release/bin
started=$SECONDS
deploy/install-deps.sh
free_kib=$(df -Pk . | awk 'NR==2 {print $4}')
[ "$free_kib" -ge 1048576 ] || [ -x $bin/swiftcachectl ] || die "$PWD has $((free_kib / 1024)) MiB free, wanted 1024 to build; free some"
mkdir -p build
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1  # checkouts in other folders share the compiler cache
log=build/quickstart.log
cmake --preset release >"$log" 2>&1 || { tail -15 "$log" >&2; die "cmake --preset release failed (above; all of it in $log)"; }
say "building (release)"
# One line of progress: rewritten in place on a terminal, every tenth step elsewhere.
NINJA_STATUS='[%f/%t %es] ' cmake --build --preset release --target binaries 2>&1 | tee -a "$log" |
  if [ -t 1 ]; then awk '/^\[/ { printf "\r\033[K%.100s", $0; fflush() } END { print "" }'
  else awk -F'[[/ ]' '/^\[/ && $2 % 10 == 0 { print $0; fflush() }'; fi ||
  { grep -A12 -m1 -E 'FAILED|error|No space' "$log" >&2 || tail -15 "$log" >&2; die "the build failed (above; all of it in $log)"; }

[ -n "$model" ] || model=$(deploy/fetch-model.sh)

for port in 50050 50051 50061 50062 50063 8000 9180 9181 9182 9183; do
  ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || die "port $port is taken (another quickstart --serve?); stop what listens there"
done

# Start --------------------------------------------------------------------------------------------------------------
run=$(mktemp -d "${TMPDIR:-/tmp}/swiftcache-quickstart.XXXXXX") || die "cannot make a folder in ${TMPDIR:-/tmp}; is the disk full?"
pids=()
finish() {
  local code=$?
  trap - EXIT INT TERM
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  for pid in "${pids[@]}"; do  # a drain is bounded by --drain_timeout, so this ends
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$run"
  exit $code
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start() {  # start NAME HTTP_PORT BINARY FLAGS...
  local name=$1 http=$2; shift 2
  "$bin/$1" "${@:2}" --http_listen="127.0.0.1:$http" >"$run/$name.log" 2>&1 &
  pids+=($!)
  eval "pid_${name//-/_}=$!"
}
healthy() {  # healthy NAME HTTP_PORT
  local pid_name=pid_${1//-/_} deadline=$((SECONDS + 120))
  until grep -q '^listening' "$run/$1.log" && curl -fs -o "$run/health" "http://127.0.0.1:$2/health"; do
    kill -0 "${!pid_name}" 2>/dev/null || die "$1 ended: $(tail -1 "$run/$1.log")"
    [ $SECONDS -lt $deadline ] || die "$1 is not healthy after 120 s: $(tail -1 "$run/$1.log")"
    sleep 0.05
  done
}
engine() {  # engine MODEL_NAME NUMBER FLAGS...
  start "$1" $((9180 + $2)) swiftcache-engine --model="$model" --model_name="$1" --listen=127.0.0.1:$((50060 + $2)) \
    --broker=127.0.0.1:50050 --drain_timeout=5s "${@:3}"
}

say "starting a broker, a gateway and three engines"
start broker 9180 swiftcache-broker --listen=127.0.0.1:50050
healthy broker 9180
start gateway 8000 swiftcache-gateway --listen=127.0.0.1:50051 --broker=127.0.0.1:50050 --drain_timeout=5s
engine smollm2-chat 1 --kv_cache_bytes=128MiB --kv_cache_dtype=bf16
engine smollm2-summary 2 --kv_cache_bytes=128MiB --kv_cache_dtype=f32
engine smollm2-complete 3 --kv_cache_bytes=128MiB --kv_cache_dtype=bf16 --block_tokens=32
healthy gateway 8000
healthy smollm2-chat 9181
healthy smollm2-summary 9182
healthy smollm2-complete 9183
ctl=$bin/swiftcachectl

# Talk ---------------------------------------------------------------------------------------------------------------
say "three turns with smollm2-chat (ready after $((SECONDS - started)) s)"
"$ctl" chat --model=smollm2-chat --temperature=0 --max_tokens=96 \
  --message="Hello! What is a good name for a small robot that waters plants?" \
  --message="Nice. Write two sentences about its first day at work." \
  --message="Now say that again as if you were a pirate."
say "one request to smollm2-summary"
"$ctl" generate --model=smollm2-summary --temperature=0 --max_tokens=32 --prompt="In one sentence, photosynthesis is"
say "one request to smollm2-complete"
"$ctl" generate --model=smollm2-complete --temperature=0 --max_tokens=32 --prompt="def fibonacci(n):"
say "the cluster"
"$ctl" status

if $serve; then
  say "serving until Ctrl-C; try, in another terminal:"
  echo "  $PWD/$bin/swiftcachectl chat --model smollm2-chat"
  echo "  curl -s http://127.0.0.1:8000/v1/chat/completions -d '{\"model\":\"smollm2-chat\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'"
  echo "  curl -s http://127.0.0.1:9181/metrics | grep swiftcache_"
  echo "  $PWD/$bin/swiftcachectl status"
  echo "  kill $$    # stops everything, as Ctrl-C does here"
  wait -n "${pids[@]}" || true
  die "one of the processes ended by itself: $(tail -qn1 "$run"/*.log | grep -m1 -E '^[EF]' || echo 'no error in its log')"
fi
