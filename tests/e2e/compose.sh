#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/docker-compose.yml in real containers (podman, podman-compose): images, `up`, chats over gRPC and HTTP from the
# host, leases between containers, Prometheus that scrapes all, an alert when an engine is killed, `down` without a trace.
# Wants root and Debian's packages; says `skipped: WHY` and ends with 77 where containers cannot run.
#   tests/e2e/compose.sh FOLDER_OF_BINARIES MODEL.gguf           the image is made of a package built here
#   tests/e2e/compose.sh FOLDER_OF_BINARIES MODEL.gguf --whole   the image builds it, as for a user: minutes more
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$(realpath "$1") model=$(realpath "$2")
. tests/e2e/deployment.sh compose
project=swiftcache-test-$$
compose() { (cd "$work/deploy" && podman-compose -p "$project" "$@" >>"$work/compose.log" 2>&1); }
show_why() {
  for name in $(pod ps -a --format '{{.Names}}' --filter "name=$project" 2>/dev/null); do
    echo "--- $name: $(pod logs --tail 5 "$name" 2>&1)"
  done
  tail -20 "$work/compose.log" 2>/dev/null
}
clean_up() {
  [ ! -d "$work/deploy" ] || compose down -v
  ! pod network exists "${project}_default" 2>/dev/null || pod network rm -f "${project}_default" >/dev/null 2>&1
  pod rmi localhost/swiftcache-test:latest >/dev/null 2>&1
}

# Images -------------------------------------------------------------------------------------------------------------
use_podman bridge
say "knobs, limits, health checks and builds"
! grep -oE '\$\{\w+' deploy/docker-compose.yml | grep -v CLUSTER_ || die "what is to be a knob of .env has a name that a shell may have, which wins"
/usr/bin/python3 - <<'EOF' || die "a service that stays up has no limit of memory or of its log, or no health check, or two services build one image"
import sys, yaml
services = yaml.safe_load(open("deploy/docker-compose.yml"))["services"]
built = [service["image"] for service in services.values() if "build" in service]
assert len(built) == len(set(built)) == 2, built
sys.exit([name for name, service in services.items() if not name.endswith("model") and not {"mem_limit", "logging", "healthcheck"} <= service.keys()] or 0)
EOF
if [ "${3:-}" = --whole ]; then
  mkdir -p ~/.cache/ccache
  source=(--layers=false --volume ~/.cache/ccache:/root/.cache/ccache)  # no gigabyte stays; the second time is faster
else
  make_package
  mkdir "$work/package"
  cp "$package" "$work/package/swiftcache.deb"
  source=(--build-context package="$work/package")
fi
say "image"
pod build --network=host --build-arg BASE=$base "${source[@]}" -f deploy/docker/Dockerfile \
  -t localhost/swiftcache-test:latest . >"$work/build.log" 2>&1 || die "the image was not built: $(tail -5 "$work/build.log")"
bytes() { pod image inspect --format '{{.Size}}' "$1"; }
above=$((($(bytes localhost/swiftcache-test) - $(bytes $base)) / 1000000))
echo "image: $above MB above its base"
[ $above -le 150 ] || die "the image is $above MB above its base, wanted at most 150"
if ! pod image exists localhost/swiftcache-test-prometheus; then
  pod build --network=host -t localhost/swiftcache-test-prometheus - >"$work/build.log" 2>&1 <<EOF || die "Prometheus' image was not built: $(tail -5 "$work/build.log")"
FROM $base
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && install -d -o nobody -g nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
EOF
fi

# Up -----------------------------------------------------------------------------------------------------------------
free_ports() { python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*[s.getsockname()[1] for s in held])'; }
read -r grpc http broker prometheus < <(free_ports)
mkdir -p "$work/models"
cp "$model" "$work/models/model.gguf"
ln "$work/models/model.gguf" "$work/models/other.gguf"
chmod -R a+rX "$work"
cp -r deploy "$work/deploy"
sed -i "s/^CLUSTER_MODEL=.*/CLUSTER_MODEL=model.gguf/; s/^CLUSTER_SUMMARY_MODEL=.*/CLUSTER_SUMMARY_MODEL=other.gguf/" "$work/deploy/.env"
cat >>"$work/deploy/.env" <<EOF
CLUSTER_IMAGE=localhost/swiftcache-test:latest
CLUSTER_PYTHON_IMAGE=$base
CLUSTER_PROMETHEUS_IMAGE=localhost/swiftcache-test-prometheus
CLUSTER_MODELS=$work/models
CLUSTER_SCALE_DOWN_WINDOW=1s
CLUSTER_GRPC_PORT=$grpc
CLUSTER_HTTP_PORT=$http
CLUSTER_BROKER_PORT=$broker
CLUSTER_PROMETHEUS_PORT=$prometheus
EOF
sed -i 's/for: [0-9]*[sm]/for: 1s/; s/scrape_interval: 5s/scrape_interval: 1s/; s/evaluation_interval: 5s/evaluation_interval: 1s/; s/refresh_interval: 15s/refresh_interval: 1s/' \
  "$work"/deploy/observability/*.yml
say "Grafana's password"
(cd "$work/deploy" && bash -euc "$(sed -n 's/^#  *install/install/p' .env)")
secret=$work/deploy/$(sed -n 's/^CLUSTER_GRAFANA_PASSWORD_FILE=//p' deploy/.env)
pod run --rm --network=none --user=472 --volume "$secret:/run/secrets/grafana_password:ro" $base grep -q . /run/secrets/grafana_password ||
  die "Grafana's user cannot read the password that is made as .env says"

say "a model that is not there"
grep -q "fetched=$(sed -n 's/^CLUSTER_MODEL=//p' deploy/.env)$" deploy/docker-compose.yml || die "CLUSTER_MODEL of .env is not the one that is fetched"
says() {  # says SERVICE: which is told that one of the models is not there
  # podman-compose 1.0.3 ends with 0 whatever the service does.
  (cd "$work/absent" && podman-compose -p "$project" run --rm --no-deps -T "$1" 2>&1 | tee -a "$work/compose.log")
}
for name in CLUSTER_{CHAT,SUMMARY,COMPLETE,GPU0,GPU1}; do
  cp -r "$work/deploy" "$work/absent"
  sed -i "s/^${name}_MODEL=.*/${name}_MODEL=absent.gguf/" "$work/absent/.env"
  asked=model other=gpu-model
  [[ $name != *GPU* ]] || asked=gpu-model other=model
  said=$(says $asked)
  [[ $said == *"no model at CLUSTER_MODELS/absent.gguf"*"set ${name}_MODEL"* ]] || die "of an absent ${name}_MODEL is said: '$said'"
  [[ $said != *fetch-model:* ]] || die "for an absent ${name}_MODEL another is fetched: '$said'"
  said=$(says $other)
  [[ $said != *absent.gguf* ]] || die "$other misses what only $asked wants: '$said'"
  rm -r "$work/absent"
done

say "up"
pod volume ls -q | sort >"$work/volumes"
# podman-compose 1.0.3 knows nothing of driver_opts: the volume is made here as the file says.
in_memory=(--opt type=tmpfs --opt device=tmpfs --opt o="$(sed -n 's/^ *o: //p' deploy/docker-compose.yml)")
pod volume create --label io.podman.compose.project="$project" "${in_memory[@]}" "${project}_leases" >/dev/null
compose up -d model broker gateway chat summary complete prometheus || die "up failed"
ctl() { "$bin/swiftcachectl" --gateway=127.0.0.1:"$grpc" --broker=127.0.0.1:"$broker" "$@"; }
models() { curl -fs "http://127.0.0.1:$http/v1/models" 2>/dev/null | python3 -c 'import json, sys; print(*sorted(m["id"] for m in json.load(sys.stdin)["data"]))' 2>/dev/null; }
serves_all() { [ "$(models)" = "chat complete summary" ]; }
wait_for 120 "three models" serves_all
ctl health >/dev/null || die "the gateway is not healthy"
for service in broker gateway chat summary complete; do  # podman runs them on demand alone
  pod healthcheck run "${project}_${service}_1" >/dev/null || die "$service fails its health check"
done
[ "$(pod exec "${project}_chat_1" id -u)" = 10001 ] || die "the engine does not run as its own user"
pod exec "${project}_chat_1" sh -c 'ls /run/swiftcache/cores-*' >/dev/null || die "the engines do not meet to divide the cores"

say "told alike"
pod logs "${project}_chat_1" 2>&1 | told >"$work/container"
told_by_shell "$bin/swiftcache-engine" --model=/models/model.gguf --name=chat --model-name=chat \
  --listen=0.0.0.0:50061 --http-listen=0.0.0.0:9181 --broker=broker:50050 --advertise=chat:50061 --kv-cache-bytes=16M \
  --drain-timeout=30s --revoke-deadline=0.05s --threads=0 --shm-dir=/run/swiftcache >"$work/shell"
cmp "$work/container" "$work/shell" || die "compose and a shell line are read differently: '$(cat "$work/container")', '$(cat "$work/shell")'"

model_of() { pod logs "${project}_$1_1" 2>&1 | told | grep -o '\bmodel=[^ ]*'; }
given="$(model_of summary) $(model_of complete)"
[ "$given" = "model=/models/other.gguf model=/models/model.gguf" ] || die "the engines have other models than they are given: $given"

say "chats"
ctl generate --model=summary --temperature=0 --max_tokens=8 --prompt="Water boils at" >"$work/grpc" || die "no answer over gRPC"
body='{"model":"complete","max_tokens":8,"temperature":0,"messages":[{"role":"user","content":"Hello"}]}'
curl -fs "http://127.0.0.1:$http/v1/chat/completions" -d "$body" | grep -q '"finish_reason"' || die "no answer over HTTP"
for _ in 1 2 3; do  # a thousand tokens, behind memory for seven hundred
  ctl chat --model=chat --temperature=0 --max_tokens=24 --message="$(cat deploy/lighthouse.txt) What did the letter say?" >"$work/chat" ||
    die "the long chat failed: $(tail -1 "$work/chat")"
done
leases() { ctl lease ls -o json | python3 -c 'import json, sys; print(sum(l["state"] == "GRANTED" and l["borrower"] == "chat" for l in json.load(sys.stdin)["leases"]))'; }
borrows() { [ "$(leases)" -gt 0 ]; }
wait_for 20 "a lease between containers" borrows
echo "leases of chat: $(leases)"

# Prometheus ---------------------------------------------------------------------------------------------------------
say "Prometheus"
ask() { curl -fs "http://127.0.0.1:$prometheus/api/v1/query" --data-urlencode "query=$1"; }
value() { ask "$1" | python3 -c 'import json, sys; r = json.load(sys.stdin)["data"]["result"]; print(r[0]["value"][1] if r else "")' 2>/dev/null || true; }
all_up() { [ "$(value 'sum(up{job=~"swiftcache-.*"})')" = 5 ]; }
wait_for 30 "five targets" all_up
pod healthcheck run "${project}_prometheus_1" >/dev/null || die "Prometheus fails its health check"
# The counters begin with the first scrape: some more requests, so that there is a rate.
has_p99() {
  ctl generate --model=chat --temperature=0 --max_tokens=4 --prompt="One" >/dev/null
  [[ "$(value 'model:swiftcache_time_to_first_token_seconds:p99_5m{model_name="chat"}')" =~ ^[0-9.e-]+$ ]]
}
wait_for 30 "a P99 of first tokens" has_p99
echo "P99 of first tokens of chat: $(value 'model:swiftcache_time_to_first_token_seconds:p99_5m{model_name="chat"}') s"

say "interference"
decode() { ctl generate --model=summary --temperature=0 --ignore_eos --max_tokens="$1" --prompt="Once upon a time" >/dev/null || die "no answer of summary"; }
long_chat() { ctl chat --model=chat --temperature=0 --ignore_eos --max_tokens=100 --message="$(cat deploy/lighthouse.txt) What did the letter say?" >/dev/null || die "no answer of chat"; }
decode 500  # without lease traffic; then beside chat, which reads there
interference() { value 'engine:swiftcache_interference:ratio_5m{engine="summary", phase="decode"}'; }
has_interference() {
  long_chat & decode 200
  wait $! || die "no answer of chat"
  [[ "$(interference)" =~ ^[0-9.]+$ ]]
}
wait_for 60 "the interference of chat with summary" has_interference
echo "interference of decoding, of summary: $(interference)"

firing() {
  curl -fs "http://127.0.0.1:$prometheus/api/v1/alerts" | python3 -c '
import json, sys
alerts = json.load(sys.stdin)["data"]["alerts"]
sys.exit(not any(a["labels"]["alertname"] == "SwiftCacheServerDown" and a["state"] == "firing" for a in alerts))'
}
engines() { ask 'up{job="swiftcache-engine"}' | python3 -c '
import json, sys
print(*sorted(one["metric"]["instance"] + "=" + one["value"][1] for one in json.load(sys.stdin)["data"]["result"]))'; }
without="chat:9181=1 complete:9181=1 summary:9181=1"
without_gpu0() { [ "$(engines)" = "$without" ] && ! firing; }
wait_for 20 "three engines up, and no alert" without_gpu0  # one scrape may be late

say "an engine of the profile gpu comes and goes"
# Any server under its name: there is no GPU here.
pod run -d --name "${project}_gpu0_1" --network "${project}_default" --network-alias gpu0 localhost/swiftcache-test \
  swiftcache-broker --listen=127.0.0.1:50050 --http_listen=0.0.0.0:9181 >/dev/null
with_gpu0() { [ "$(engines)" = "chat:9181=1 complete:9181=1 gpu0:9181=1 summary:9181=1" ]; }
wait_for 20 "gpu0 among the targets" with_gpu0
pod rm -f -t 0 "${project}_gpu0_1" >/dev/null
wait_for 20 "gpu0 gone from the targets, and no alert of it" without_gpu0

say "an engine is killed"
pod kill "${project}_complete_1" >/dev/null 2>&1
pod rm -f "${project}_complete_1" >/dev/null 2>&1  # else it is started again
wait_for 30 "the alert" firing
ctl generate --model=summary --temperature=0 --max_tokens=4 --prompt="Still" >/dev/null || die "the other engines felt it"

say "down"
compose down -v || die "down failed"
pod network rm "${project}_default" >/dev/null  # which podman-compose 1.0.3 leaves
left=$(pod ps -a --format '{{.Names}}' --filter "name=$project"; pod volume ls -q | sort | comm -13 "$work/volumes" -
       pod network ls -q --filter "name=$project"; pgrep -af "$project" || true)
[ -z "$left" ] || die "left behind: $left"
echo "containers: up, chats, leases, metrics, alert and down in $SECONDS s"
