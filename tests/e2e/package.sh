#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Debian package in a bare Debian 12: installed, its servers started as their units say, a chat, an upgrade beside the
# running cluster, removed and purged without a trace. Wants root and Debian's packages; says `skipped: WHY` and ends with 77
# where that cannot be had.
#   tests/e2e/package.sh MODEL.gguf
set -euo pipefail
cd "$(dirname "$0")/../.."
model=$(realpath "$1")
. tests/e2e/deployment.sh package
base=$(tests/e2e/debian-base.sh 2>&1) || skip "$base"
root=$work/root pids=()
show_why() { tail -n 3 "$work"/*.log; }
clean_up() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null
  wait
  ! mountpoint -q "$root/proc" || umount "$root/proc"
}

make_package
say "a bare Debian 12"
mkdir "$root"
tar -C "$root" -xf "$base"
mount -t proc proc "$root/proc" 2>/dev/null || skip "nothing can be mounted here"
cp /etc/resolv.conf "$root/etc/resolv.conf"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
printf 'Acquire::Retries "3";\n' >"$root/etc/apt/apt.conf.d/80retries"
# Everything but what apt, dpkg and adduser keep for themselves.
files() { (cd "$root" && find . -xdev \( -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/cache -o -path ./var/log -o -path ./tmp \
  -o -path ./proc -o -path './etc/*-' -o -path ./run/adduser \) -prune -o -print | LC_ALL=C sort); }
install_deb() { cp "$1" "$root/tmp/swiftcache.deb" && inside apt-get install -qq -y --no-install-recommends /tmp/swiftcache.deb >>"$work/apt.log" 2>&1; }

say "installed"
inside apt-get update -qq >>"$work/apt.log" 2>&1 || skip "Debian's packages cannot be reached: $(tail -1 "$work/apt.log")"
# shellcheck disable=SC2046  # one word a package
inside apt-get install -qq -y --no-install-recommends $(dependencies) >>"$work/apt.log" 2>&1 || die "its dependencies cannot be installed"
accounts() { cat "$root/etc/passwd" "$root/etc/group"; }
files >"$work/before"
accounts >"$work/accounts"
install_deb "$package" || die "it was not installed: $(tail -3 "$work/apt.log")"
[ "$(inside id -un swiftcache)" = swiftcache ] || die "there is no user swiftcache"
for binary in swiftcache-broker swiftcache-gateway swiftcache-engine swiftcachectl; do
  inside $binary --version >/dev/null || die "$binary does not run"
  ! readelf -S "$root/usr/bin/$binary" | grep -q '\.debug_info' || die "$binary is not stripped"
done
if command -v systemd-analyze >/dev/null; then
  for unit in broker gateway engine@chat; do
    template=$root/usr/lib/systemd/system/swiftcache-${unit%%@*}
    [[ $unit != *@* ]] || template+=@
    wrong=$(systemd-analyze verify --man=no "$template.service" 2>&1 | grep swiftcache | grep -vE 'is not executable|No such file' || true)
    [ -z "$wrong" ] || die "the unit $unit is not right: $wrong"
  done
fi

# As the unit would, systemd aside: its user, its environment and its files of variables.
start() {  # start UNIT INSTANCE
  local unit=$root/usr/lib/systemd/system/$1.service variables=() line
  while read -r line; do variables+=("$line"); done < <(
    sed -n 's/^Environment=//p' "$unit" | sed "s/%i/$2/g" | tr ' ' '\n'
    grep -hv '^ *\(#\|$\)' "$root$(sed -n 's/^EnvironmentFile=//p' "$unit" | sed "s/%i/$2/")" || true)
  install -d -m 0700 -o "$(inside id -u swiftcache)" -g "$(inside id -g swiftcache)" "$root/run/swiftcache"
  chroot --userspec="$(sed -n 's/^User=//p' "$unit"):swiftcache" "$root" /usr/bin/env -i PATH=/usr/bin "${variables[@]}" \
    "$(sed -n 's/^ExecStart=//p' "$unit")" >"$work/$1$2.out" 2>"$work/$1$2.log" &
  pids+=($!)
}
listening() {  # listening OUT: its gRPC address
  wait_for 60 "the address of $1" grep -qs '^listening' "$work/$1.out"
  sed -n 's/^listening grpc=\([^ ]*\).*/\1/p' "$work/$1.out"
}
say "started as its units say"
cp "$model" "$root/var/lib/swiftcache/model.gguf"
printf '%s\n' SWIFTCACHE_LISTEN=127.0.0.1:0 SWIFTCACHE_HTTP_LISTEN=127.0.0.1:0 | tee -a "$root/etc/swiftcache/broker.env" >>"$root/etc/swiftcache/gateway.env"
start swiftcache-broker ""
broker=$(listening swiftcache-broker)
echo "SWIFTCACHE_BROKER=$broker" >>"$root/etc/swiftcache/gateway.env"
start swiftcache-gateway ""
gateway=$(listening swiftcache-gateway)
sed "s/^SWIFTCACHE_LISTEN=.*/SWIFTCACHE_LISTEN=127.0.0.1:0/; s/^SWIFTCACHE_HTTP_LISTEN=.*/SWIFTCACHE_HTTP_LISTEN=127.0.0.1:0/
  s/^SWIFTCACHE_BROKER=.*/SWIFTCACHE_BROKER=$broker/; s/1GiB/64MiB/" "$root/usr/share/doc/swiftcache/examples/engine.env" >"$root/etc/swiftcache/engine-chat.env"
start swiftcache-engine@ chat
listening swiftcache-engine@chat >/dev/null
user=$(inside id -u swiftcache)
for pid in "${pids[@]}"; do [ "$(stat -c %u "/proc/$pid")" = "$user" ] || die "process $pid runs as $(stat -c %U "/proc/$pid")"; done
chat() { inside swiftcachectl --gateway="$gateway" generate --model=chat --wait=60 --temperature=0 --max_tokens=8 --prompt="Water boils at"; }
chat >"$work/first" || die "no answer"

say "one command, by a user of this machine"
up() {  # up MODEL...: a cluster, a first answer of each model, and Ctrl-C
  local begin=$SECONDS name
  rm -f "$work/up.out"  # the next is read as soon as it says ready
  chroot --userspec=nobody:nogroup "$root" /usr/bin/env -i PATH=/usr/bin HOME=/tmp swiftcachectl up --kv_cache_bytes=32MiB "$@" \
    >"$work/up.out" 2>"$work/up.log" &
  pids+=($!)
  wait_for 60 "swiftcachectl up $*" grep -qs '^ready' "$work/up.out"
  for name in "${@%%=*}"; do
    inside swiftcachectl --gateway="$(sed -n 's/^gateway: gRPC \([^ ,]*\).*/\1/p' "$work/up.out")" generate --model="$name" --max_tokens=4 \
      --temperature=0 --prompt="Water boils at" >>"$work/up.log" || die "no answer of $name"
  done
  echo "$# in $((SECONDS - begin)) s"
  kill -INT "${pids[-1]}"
  wait "${pids[-1]}" || die "it ended with $?"
  unset 'pids[-1]'
}
up first=/var/lib/swiftcache/model.gguf
up first=/var/lib/swiftcache/model.gguf second=/var/lib/swiftcache/model.gguf

say "upgraded beside the running cluster"
install_deb "$work/next.deb" || die "the upgrade failed: $(tail -3 "$work/apt.log")"
[ "$(inside dpkg-query -W -f "\${Version}" swiftcache)" = 99.0 ] || die "it was not upgraded"
grep -q "SWIFTCACHE_BROKER=$broker" "$root/etc/swiftcache/gateway.env" || die "the upgrade lost the configuration"
chat >"$work/second" || die "the running cluster felt the upgrade"
cmp <(head -1 "$work/first") <(head -1 "$work/second") || die "another answer after the upgrade"

say "removed and purged"
kill "${pids[@]}"
for pid in "${pids[@]}"; do wait "$pid" || die "a server ended with $?"; done
pids=()
inside apt-get purge -qq -y swiftcache >>"$work/apt.log" 2>&1 || die "it was not purged: $(tail -3 "$work/apt.log")"
files | diff "$work/before" - >"$work/files.log" || die "files are left, or gone: $(head -5 "$work/files.log")"
accounts | diff "$work/accounts" - >"$work/accounts.log" || die "accounts are left: $(head -5 "$work/accounts.log")"
echo "package: $(stat -c %s "$package") bytes, installed, served, upgraded, purged in $SECONDS s"
