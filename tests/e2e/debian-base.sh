#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of a tar of a bare Debian 12, made by debootstrap and kept in the cache. One line says why there is none.
set -euo pipefail
cache="${XDG_CACHE_HOME:-$HOME/.cache}/swiftcache"
tar=$cache/debian-12-base.tar
[ ! -e "$tar" ] || { echo "$tar"; exit 0; }
die() { echo "$*" >&2; exit 1; }
command -v debootstrap >/dev/null || apt-get -qq install -y --no-install-recommends debootstrap >/dev/null 2>&1 ||
  die "debootstrap cannot be installed: is the network there?"
mkdir -p "$cache"
work=$(mktemp -d /tmp/swiftcache-base.XXXXXX)
trap 'rm -rf "$work"' EXIT
debootstrap --variant=minbase bookworm "$work/root" >"$work/log" 2>&1 || die "debootstrap failed: $(tail -1 "$work/log")"
rm -rf "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/*
tar -C "$work/root" -cf "$tar.$$" . && mv "$tar.$$" "$tar"
echo "$tar"
