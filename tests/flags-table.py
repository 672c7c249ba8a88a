#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of all servers' flags in services/README.md, from their own --help. Exit code 1 where the two differ, or where
--help has a line that is not understood.

  tests/flags-table.py --bin build/release/bin [--write]
"""
import argparse
import pathlib
import re
import subprocess
import sys

FLAG = re.compile(r"^  --(\w+)(?:=(\S+))?( REQUIRED)?(?: \S+)? ?\(Env:SWIFTCACHE_(\w+)\)\n((?: {20,}.*\n)+)", re.M)
NO_ROW = re.compile(r"^  (-h,--help|--version)  .*\n", re.M)  # every program's
README = pathlib.Path(__file__).resolve().parent.parent / "services/README.md"
BEGIN, END = "<!-- flags: tests/flags-table.py --write -->\n", "<!-- end of flags -->\n"


def flags(program):
    """(flag, default, meaning) of each flag, in the order of --help."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True, env={}).stdout
    text = re.sub(r"/tmp/swiftcache-\d+", "/tmp/swiftcache-UID", text)
    if left := re.search(r"^ +\S.*", NO_ROW.sub("", FLAG.sub("", text)), re.M):
        sys.exit(f"{program} --help has a line that is not understood: {left[0].strip()}")
    for m in FLAG.finditer(text):
        name, default, required, variable, meaning = m.groups()
        assert variable == name.upper(), f"{program} --{name} has the variable {variable}"
        yield name, "required" if required else f"`{default}`" if default else "", " ".join(meaning.split()).replace("|", "\\|")


def table(bin_dir):
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    servers = {name: list(flags(bin_dir / f"swiftcache-{name}")) for name in ("gateway", "broker", "engine")}
    for name, found in servers.items():
        assert len(found) > 5, f"--help of swiftcache-{name} was not understood"
        rows += [f"| **{name}** | | |"] + [f"| `--{flag}` | {default} | {meaning} |" for flag, default, meaning in found]
    return "\n".join(rows) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    text = README.read_text()
    head, rest = text.split(BEGIN)
    found, tail = rest.split(END)
    made = table(arguments.bin)
    if arguments.write:
        README.write_text(head + BEGIN + made + END + tail)
    elif found != made:
        print("services/README.md: the table of flags is not what --help says: tests/flags-table.py --bin build/release/bin --write")
        sys.exit(1)


main()
