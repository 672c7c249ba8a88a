#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every C++ and CUDA file is as clang-format 14 leaves it, and starts with its licence line.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.cc' '*.h' '*.cu' '*.cuh')
[ ${#files[@]} -gt 0 ]
clang-format-14 --dry-run --Werror "${files[@]}"
unlicensed=$(git ls-files '*.cc' '*.h' '*.cu' '*.cuh' '*.proto' '*.sh' '*.py' '*CMakeLists.txt' '*.cmake' | xargs grep -L 'SPDX-License-Identifier: Apache-2.0' || true)
[ -z "$unlicensed" ] || { echo "no SPDX line in: $unlicensed"; exit 1; }
