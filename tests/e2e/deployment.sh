# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the tests of deployment have in common: sourced with the test's name, it wants root and makes $work, a folder that
# goes at the end. A test may define clean_up, and show_why, which is called first where the test failed.
#   . tests/e2e/deployment.sh package
test_name=$1
skip() { echo "skipped: $*"; exit 77; }
why=
die() { why=$*; exit 1; }
say() { echo "== $* ($SECONDS s)"; }
wait_for() {  # wait_for SECONDS WHAT COMMAND...
  local deadline=$((SECONDS + $1)) what=$2; shift 2
  until "$@"; do
    [ $SECONDS -lt $deadline ] || die "waited in vain for $what"
    sleep 0.2
  done
}

[ "$(id -u)" -eq 0 ] || skip "containers and chroots want root, and this is not root"
work=$(mktemp -d "/tmp/swiftcache-$test_name.XXXXXX")
show_why() { :; }
clean_up() { :; }
finish() {
  local code=$?
  trap - EXIT
  set +e
  if [ $code -ne 0 ] && [ $code -ne 77 ]; then show_why; fi
  [ -z "$why" ] || echo "$test_name: $why" >&2  # the last line, which whoever runs many tests shows
  clean_up
  rm -rf --one-file-system "$work"
  exit $code
}
trap finish EXIT

# From a server's log: what it was told. The same, told by a shell line: flags of a server whose model is not there.
told() { sed -n 's/.*\] flags: //p' | head -1; }
told_by_shell() { env -i "$@" 2>&1 | told || true; }

make_package() {  # $package, and $work/next.deb: the same with a later version
  say "package"
  package=$(deploy/package.sh 2>"$work/package.log") || die "no package: $(tail -3 "$work/package.log")"
  dpkg-deb -R "$package" "$work/next"
  sed -i 's/^Version: .*/Version: 99.0/' "$work/next/DEBIAN/control"
  dpkg-deb -Znone -b "$work/next" "$work/next.deb" >/dev/null
}
dependencies() { dpkg-deb -f "$package" Depends | sed 's/([^)]*)//g; s/,//g'; }

pod() { podman --log-level=error "$@"; }
# $base, an image of a bare Debian 12; skips where containers cannot run. use_podman NETWORK
use_podman() {
  local packages=(podman podman-compose runc netavark aardvark-dns iptables) tar
  dpkg-query -W "${packages[@]}" >/dev/null 2>&1 ||
    apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null 2>&1 ||
    skip "podman cannot be installed: is the network there?"
  export CONTAINERS_CONF=$work/containers.conf
  # Limits that a machine allows which lets nobody raise them.
  cat >"$CONTAINERS_CONF" <<EOT
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
EOT
  base=localhost/swiftcache-test-base
  if ! pod image exists $base; then
    say "base image"
    tar=$(tests/e2e/debian-base.sh 2>&1) || skip "$tar"
    pod import "$tar" $base >/dev/null 2>&1 || skip "podman cannot import an image here"
  fi
  pod run --rm --network="$1" $base true >"$work/run.log" 2>&1 || skip "containers cannot run here: $(tail -1 "$work/run.log")"
}
