#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run-one.sh FUZZER SECONDS: the kept corpus first, then new inputs, which are thrown away; a finding is kept and named.
set -euo pipefail
name=$(basename "$1")
corpus=$(dirname "$0")/corpus/$name
work=$(mktemp -d "${TMPDIR:-/tmp}/swiftcache-fuzz.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p build/findings "$corpus"
"$1" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="build/findings/$name-" -print_final_stats=1 "$work" "$corpus"
