#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the folder of Debian's prometheus and promtool: where they are installed, or unpacked from their package into
# the cache. Installed they would start a server of their own. One line says why there is none.
set -euo pipefail
if command -v promtool >/dev/null && command -v prometheus >/dev/null; then dirname "$(command -v promtool)"; exit 0; fi
folder="${XDG_CACHE_HOME:-$HOME/.cache}/swiftcache/prometheus"
if [ ! -x "$folder/usr/bin/promtool" ]; then
  work=$(mktemp -d /tmp/swiftcache-prometheus.XXXXXX)
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && apt-get -qq -o Acquire::Retries=3 download prometheus >log 2>&1) ||
    { echo "Prometheus cannot be fetched: $(tail -1 "$work/log")" >&2; exit 1; }
  rm -rf "$folder"
  mkdir -p "$folder"
  dpkg-deb -x "$work"/prometheus_*.deb "$folder"
fi
echo "$folder/usr/bin"
