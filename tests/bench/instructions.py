#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of fixed pieces of work, and compares them with those of instructions.json.

  tests/bench/instructions.py --bin build/release/bin             fails where one has grown by over 5 %
  tests/bench/instructions.py --bin build/release/bin --accept    takes today's numbers, for a commit that says why

callgrind counts, so that no other process and no clock matters: 20 seconds on a core. One thread, a model of 0.7 million
weights, instruction sets that valgrind knows. Exit code 77, with the reason in the last line: it cannot count here.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = pathlib.Path(__file__).with_name("instructions.json")
MODEL = ROOT / "tests/data/tiny-gguf/tiny-llama-a.q4_1.gguf"
LIMIT = 0.05  # what may come of another libc or another layout of hash tables is far below
WORKS = {f"{work}, {isa}": ["swiftcache-counted-steps", work, isa, MODEL]
         for work in ("decode", "prefill") for isa in ("avx2", "baseline")}
WORKS["1,000 steps of the scheduler"] = ["swiftcache-bookkeeping-bench", "counted"]
NOT_HERE = 77


def count(bin_dir, command):
    """None: the machine lacks the instructions. Without address randomisation Abseil's hashes are the same each time."""
    run = subprocess.run(["setarch", "-R", "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
                          "--toggle-collect=swiftcache_counted", bin_dir / command[0], *command[1:]],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if run.returncode == NOT_HERE:
        return None
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode or not found:
        sys.exit(f"{run.stderr}\n{command[0]} was not counted: exit code {run.returncode}")
    return int(found[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--accept", action="store_true")
    args = parser.parse_args()
    if not shutil.which("valgrind"):
        print("skipped: no valgrind")
        sys.exit(NOT_HERE)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    found, grown = dict(known), []
    for name, command in WORKS.items():
        instructions = count(args.bin, command)
        if instructions is None:
            print(f"{name}: this machine has no such instructions")
            continue
        found[name] = instructions
        change = instructions / known.get(name, instructions) - 1
        print(f"{name}: {instructions:,} instructions, {change:+.1%}", flush=True)
        if change > LIMIT:
            grown.append(f"{name}: {change:+.1%}, from {known[name]:,} to {instructions:,}")
    if args.accept:
        FILE.write_text(json.dumps(found, indent=2) + "\n")
    elif grown:
        sys.exit("FAILED: grown by over 5 %: " + "; ".join(grown) + "\nWhere that is what you want, say why in the commit and run "
                 "tests/bench/instructions.py --bin build/release/bin --accept")


if __name__ == "__main__":
    main()
