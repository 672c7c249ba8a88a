#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/gpu/RESULTS.md from what tests/gpu/run.sh left: tests/gpu/results.py FOLDER [COMMAND]"""
import json
import pathlib
import sys

HEAD = """# What ran on a GPU, and how fast

Written by `tests/gpu/results.py` from what `tests/gpu/run.sh` leaves. Bounds are measured in the same run.
"""


def tests(folder):
    for name in ("gpu_backend_test", "gpu_golden_test"):
        path = folder / f"{name}.json"
        if not path.exists():
            yield f"| `{name}` | did not end | | |"
            continue
        cases = [case for suite in json.loads(path.read_text())["testsuites"] for case in suite["testsuite"]]
        failed = [case for case in cases if case.get("failures")]
        skipped = [case for case in cases if case.get("result") == "SKIPPED"]
        yield f"| `{name}` | {len(cases) - len(failed) - len(skipped)} | {len(failed)} | {len(skipped)} |"


def bench(path):
    data = json.loads(path.read_text())
    bounds = data["bounds"]
    yield f"Bounds: bf16 products {bounds['gemm_tflops']:.0f} TFLOP/s, a plain copy {bounds['copy_gb_s']:.0f} GB/s (reads and writes).\n"
    yield "| what | figure | of its bound |\n|---|---|---|"
    for row in data.get("prefill", []):
        yield f"| prefill of {row['tokens']} tokens | {row['ms']:.1f} ms | {row['of_gemm_peak']:.2f} of the products |"
    for row in data.get("decode", []):
        yield f"| decode of {row['sequences']} at {row['context']} | {row['ms']:.2f} ms | {row['of_bandwidth']:.2f} of the copy |"
    for row in data.get("copies", []):
        yield f"| slices of {row['slice_bytes'] >> 10} KiB out of blocks, 2D | {row['grid_gb_s']:.0f} GB/s | {row['grid_of_plain']:.2f} of the copy |"


def main(folder, command="tests/gpu/run.sh"):
    folder = pathlib.Path(folder)
    lines = [HEAD, "```", (folder / "machine.txt").read_text().strip(), f"command: {command}", "```", "",
             "| tests | passed | failed | skipped |", "|---|---|---|---|", *tests(folder), ""]
    if (folder / "bench.json").exists():
        lines += bench(folder / "bench.json")
    target = pathlib.Path(__file__).parent / "RESULTS.md"
    target.write_text("\n".join(lines) + "\n")
    print(f"{target} is written")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
