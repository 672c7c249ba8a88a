#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The package on a Debian 12 that systemd has started, in a container: nothing runs until it is enabled; then a cluster
# that leases, its own user, a crash, a mistake in a flag, an upgrade, a purge without a trace. Wants root, podman and
# Debian's packages; says `skipped: WHY` and ends with 77 where that cannot be had.
#   tests/e2e/units.sh MODEL.gguf
set -euo pipefail
cd "$(dirname "$0")/../.."
model=$(realpath "$1")
. tests/e2e/deployment.sh units
name=swiftcache-units-$$
inside() { pod exec "$name" "$@"; }
show_why() { inside journalctl --no-pager -n 30 2>/dev/null; }
clean_up() { pod rm -f -t 0 "$name" >/dev/null 2>&1; }

use_podman none
make_package
say "a Debian 12 that systemd starts"
image=localhost/swiftcache-test-systemd
pod build --network=host -t $image - >"$work/build.log" 2>&1 <<EOT || skip "its image cannot be built: $(tail -1 "$work/build.log")"
FROM $base
RUN apt-get update && apt-get install -y --no-install-recommends systemd systemd-sysv dbus
CMD ["/lib/systemd/systemd"]
EOT
# A name that Debian does not have is the package's mistake; that Debian cannot be reached is not.
# shellcheck disable=SC2046  # one word a package
pod run --rm --network=none $image apt-get install -s --no-install-recommends $(dependencies) >"$work/depends.log" 2>&1 ||
  die "its dependencies cannot be installed: $(tail -1 "$work/depends.log")"
pod build --network=host -t $image-units - >"$work/build.log" 2>&1 <<EOT || skip "its image cannot be built: $(tail -1 "$work/build.log")"
FROM $image
RUN apt-get update && apt-get install -y --no-install-recommends $(dependencies)
CMD ["/lib/systemd/systemd"]
EOT
# What systemd needs to make a sandbox of each unit, and no more.
pod run -d --name "$name" --network=none --systemd=always --cap-add=SYS_ADMIN --security-opt seccomp=unconfined \
  --security-opt apparmor=unconfined $image-units >/dev/null 2>"$work/run.log" || skip "systemd cannot run here: $(tail -1 "$work/run.log")"
started() { [ "$(inside systemctl is-system-running 2>/dev/null)" = running ]; }
for _ in $(seq 150); do ! started || break; sleep 0.2; done
started || skip "systemd does not start in a container here"

say "installed"
units=(swiftcache-broker swiftcache-gateway swiftcache-engine@chat swiftcache-engine@code)
files() { inside find / /run -xdev -name '*swiftcache*' -not -path '/var/lib/dpkg/*' -not -path '/var/log/*'; }
pod cp "$package" "$name:/root/first.deb"
pod cp "$work/next.deb" "$name:/root/next.deb"
inside dpkg -i /root/first.deb >"$work/dpkg.log" 2>&1 || die "it was not installed: $(tail -3 "$work/dpkg.log")"
for unit in "${units[@]}"; do
  [ "$(inside systemctl is-enabled "$unit" || true)" = disabled ] || die "$unit is enabled, and nobody asked for it"
  [ "$(inside systemctl is-active "$unit" || true)" = inactive ] || die "$unit runs, and nobody asked for it"
done

say "enabled"
pod cp "$model" "$name:/var/lib/swiftcache/model.gguf"
# shellcheck disable=SC2016  # the shell in the container sees to it
inside bash -euc '
  echo SWIFTCACHE_SCALE_DOWN_WINDOW=1s >>/etc/swiftcache/broker.env
  example=/usr/share/doc/swiftcache/examples/engine.env
  sed s/1GiB/16MiB/ $example >/etc/swiftcache/engine-chat.env
  sed "s/1GiB/512MiB/; s/:50061/:50062/; s/:9181/:9182/" $example >/etc/swiftcache/engine-code.env'
inside systemctl enable -q --now "${units[@]}"
answers() { inside swiftcachectl generate --model="$1" --wait=60 --temperature=0 --max_tokens=8 --prompt="Water boils at" >/dev/null 2>&1; }
for model_name in chat code; do answers $model_name || die "no answer from $model_name"; done
property() { inside systemctl show --value -p "$2" "$1"; }
for unit in "${units[@]}"; do
  pid=$(property "$unit" MainPID)
  [ "$(inside stat -c %U "/proc/$pid")" = swiftcache ] || die "$unit does not run as its own user"
done
[ "$(inside stat -c %U:%a /run/swiftcache)" = swiftcache:700 ] || die "the folder of the leases' sockets is open to others"

say "told alike"
dpkg-deb -x "$package" "$work/files"
inside journalctl -o cat --no-pager -u swiftcache-engine@chat | told >"$work/unit"
told_by_shell "$work/files/usr/bin/swiftcache-engine" --name=chat --model-name=chat --shm-dir=/run/swiftcache \
  --model=/var/lib/swiftcache/model.gguf --kv-cache-bytes=16M --broker=127.0.0.1:50050 --listen=127.0.0.1:50061 \
  --http-listen=127.0.0.1:9181 >"$work/shell"
cmp "$work/unit" "$work/shell" || die "a unit and a shell line are read differently: '$(cat "$work/unit")', '$(cat "$work/shell")'"

say "leases"
for _ in 1 2 3; do  # a thousand tokens, behind memory for seven hundred
  inside swiftcachectl chat --model=chat --temperature=0 --max_tokens=24 --message="$(cat deploy/lighthouse.txt) What did the letter say?" >/dev/null ||
    die "the long chat failed"
done
borrows() { inside swiftcachectl lease ls | grep -q 'chat.*GRANTED\|GRANTED.*chat'; }
wait_for 20 "a lease between units" borrows

say "urgent threads"
[ "$(property swiftcache-engine@code LimitNICE)" = 35 ] || die "a unit keeps the threads that give memory back from being urgent"

say "what GPUs want of a unit"
families=$(property swiftcache-engine@code RestrictAddressFamilies)
netlink() { inside systemd-run -q --wait --collect -p RestrictAddressFamilies="$1" perl -e 'socket(S, 16, 3, 0) or exit 1'; }
netlink "$families" || die "an engine may not ask for the machine's interfaces: NCCL must"
! netlink AF_UNIX || die "the test of address families shows nothing"
inside install -D /dev/null /tmp/nvidia-mps/control
inside touch /tmp/private

say "a crash, and a mistake"
inside systemctl kill -s KILL swiftcache-engine@code
restarted() { [ "$(property swiftcache-engine@code NRestarts)" = 1 ]; }
wait_for 20 "the crashed engine's restart" restarted
wait_for 60 "an answer of the engine that was started again" answers code  # until the gateway knows, it says: try again
named() { inside swiftcachectl status -o json | python3 -c 'import json, sys; print(*sorted(e["engine"] for e in json.load(sys.stdin)["engines"]))'; }
[ "$(named)" = "chat code" ] || die "the engines are not called as their units: $(named)"
seen() { pod exec --user=swiftcache "$name" test -e "/proc/$(property swiftcache-engine@code MainPID)/root/tmp/$1"; }
seen nvidia-mps/control || die "an engine does not see MPS"
! seen private || die "an engine sees what others have in /tmp"
inside bash -c 'sed s/^SWIFTCACHE_KV_CACHE_BYTES=.*/SWIFTCACHE_KV_CACHE_BYTES=much/ /etc/swiftcache/engine-chat.env >/etc/swiftcache/engine-wrong.env'
inside systemctl start swiftcache-engine@wrong || true
failed() { [ "$(inside systemctl is-active swiftcache-engine@wrong || true)" = failed ]; }
wait_for 20 "the end of an engine with a mistake in a flag" failed
[ "$(property swiftcache-engine@wrong NRestarts)" = 0 ] || die "an engine with a mistake in a flag is started again and again"
names_it() { [[ $(inside journalctl --no-pager -u swiftcache-engine@wrong) == *SWIFTCACHE_KV_CACHE_BYTES* ]]; }
wait_for 20 "the mistake's name in the journal" names_it
inside systemctl reset-failed swiftcache-engine@wrong

say "upgraded"
inside systemctl stop swiftcache-engine@code
pids() { for unit in "${units[@]:0:3}"; do property "$unit" MainPID; done; }
pids >"$work/before"
inside bash -euc 'printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d'
inside dpkg -i /root/first.deb >"$work/dpkg.log" 2>&1 || die "it was not installed again: $(tail -3 "$work/dpkg.log")"
pids | cmp "$work/before" - || die "servers were restarted, which policy-rc.d forbids"
inside rm /usr/sbin/policy-rc.d
inside dpkg -i /root/next.deb >"$work/dpkg.log" 2>&1 || die "the upgrade failed: $(tail -3 "$work/dpkg.log")"
[ -z "$(comm -12 <(sort "$work/before") <(pids | sort))" ] || die "a server goes on with the old version"
[ "$(inside systemctl is-active swiftcache-engine@code || true)" = inactive ] || die "the upgrade started an engine that was stopped"
answers chat || die "no answer after the upgrade"

say "purged"
inside dpkg --purge swiftcache >"$work/dpkg.log" 2>&1 || die "it was not purged: $(tail -3 "$work/dpkg.log")"
left=$(files; inside getent passwd swiftcache; inside getent group swiftcache; inside bash -c 'cat /proc/[0-9]*/comm' | grep swiftcache; inside systemctl --failed --no-legend) || true
[ -z "$left" ] || die "left behind: $left"
echo "units: enabled, leased, restarted, upgraded and purged in $SECONDS s"
