#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the product's files and functions are: a report, so that growth is seen. Refuses files over 450 lines alone.

  tests/report-sizes.py
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_LINES = 450
CODE = ["*.cc", "*.h", "*.cu", "*.cuh", "*.proto", "*.py", "*.sh", "*.cmake", "*CMakeLists.txt", ":!tests/data"]


def functions(lines):
    """(name, lines) of what begins and ends at the margin, as clang-format leaves functions outside classes."""
    begin = name = None
    for number, line in enumerate(lines):
        if begin is None and re.match(r"[A-Za-z_:<>].*\(", line) and not re.match(r"(class|struct|enum|union|namespace|using|typedef|constexpr|const|static const|TEST|extern|template)\b", line):
            begin, name = number, re.search(r"([\w:~]+)\(", line)
        if begin is not None and line.endswith(";") and not line.startswith(" "):
            begin = None
        if line == "}" and begin is not None:
            yield (name[1] if name else "?"), number - begin + 1
            begin = None


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def main():
    files = subprocess.run(["git", "ls-files", "--", *CODE], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    sizes, found = {}, []
    for file in files:
        lines = (ROOT / file).read_text().split("\n")
        sizes[file] = len(lines) - 1
        if file.endswith((".cc", ".h")) and not file.startswith("tests/"):
            found += [(length, f"{file}: {name}") for name, length in functions(lines)]
    lengths = [length for length, _ in found]
    print(f"{len(sizes)} files: median {percentile(sizes.values(), 0.5)} lines, p99 {percentile(sizes.values(), 0.99)}")
    print(f"{len(lengths)} functions of the product: median {percentile(lengths, 0.5)} lines, p99 {percentile(lengths, 0.99)}")
    for length, name in sorted(found, reverse=True)[:10]:
        print(f"  {length:4} {name}")
    for file, lines in sorted(sizes.items(), key=lambda item: -item[1])[:10]:
        print(f"  {lines:4} {file}")
    crowded = [file for file, lines in sizes.items() if lines > MOST_LINES]
    for file in crowded:
        print(f"{file} has {sizes[file]} lines, {MOST_LINES} are the most: divide it")
    return 1 if crowded else 0


sys.exit(main())
