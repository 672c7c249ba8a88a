#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian package and prints its path: installs what the build needs, builds the preset release, packs.
set -euo pipefail
cd "$(dirname "$0")/.."
die() { echo "package: $*" >&2; exit 2; }
[ $# -eq 0 ] || die "unknown argument '$1'; usage: deploy/package.sh"
deploy/install-deps.sh >&2
log=build/package.log
mkdir -p build
{ cmake --preset release && cmake --build --preset release --target binaries; } >"$log" 2>&1 ||
  { grep -A12 -m1 -E 'FAILED|error|No space' "$log" >&2 || tail -15 "$log" >&2; die "the build failed (above; all of it in $PWD/$log)"; }
rm -f build/release/swiftcache_*.deb
(cd build/release && cpack) >>"$log" 2>&1 || { tail -15 "$log" >&2; die "cpack failed (above)"; }
realpath build/release/swiftcache_*.deb
