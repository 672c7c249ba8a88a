#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/gpu/RESULTS.md from what tests/gpu/run.sh left: tests/gpu/results.py FOLDER [COMMAND]

What is to be said beside the figures stands in FOLDER/notes.md."""
import json
import pathlib
import sys

HEAD = """# What ran on a GPU, and how fast

Written by `tests/gpu/results.py` from what `tests/gpu/run.sh` leaves. Bounds are measured in the same run.
"""
TESTS = ("gpu_backend_test", "gpu_golden_test")


def tests(folder):
    for name in TESTS:
        path = folder / f"{name}.json"
        if not path.exists():
            yield f"| `{name}` | did not end | | |"
            continue
        cases = [case for suite in json.loads(path.read_text())["testsuites"] for case in suite["testsuite"]]
        failed = [case for case in cases if case.get("failures")]
        skipped = [case for case in cases if case.get("result") == "SKIPPED"]
        yield f"| `{name}` | {len(cases) - len(failed) - len(skipped)} | {len(failed)} | {len(skipped)} |"


def asked(row):
    """What was asked of its share, and whether it is so."""
    if "at_least" in row:
        return f"at least {row['at_least']:g}: {'ok' if row['share'] >= row['at_least'] else '**missed**'}"
    if "at_most" in row:
        return f"at most {row['at_most']:g}: {'ok' if row['share'] <= row['at_most'] else '**missed**'}"
    return ""


def bench(path, torch_path):
    data = json.loads(path.read_text())
    torch = json.loads(torch_path.read_text()) if torch_path.exists() else {"torch": None, "rows": []}
    theirs = {row["what"]: row for row in torch["rows"]}
    version = f"PyTorch {torch['torch']}" if torch["torch"] else "PyTorch (did not run)"
    yield f"\nA model of {data['model']}'s shape, random weights in bf16, in Q4_0 where a row says so.\n"
    yield f"| what | figure | share of its bound | asked | {version} |\n|---|---|---|---|---|"
    for row in data["rows"]:
        share = f"{row['share']:.3f} of {row['of']}" if "of" in row else ""
        other = theirs.get(row["what"])
        beside = f"{other['figure']:.4g} {other['unit']} ({other['how'].lower()})" if other else ""
        yield f"| {row['what']} | {row['figure']:.4g} {row['unit']} | {share} | {asked(row)} | {beside} |"


def sharing(path):
    data = json.loads(path.read_text())
    yield f"\nEngines of {data['models']} on one GPU, `--transport={data['transport']}`, in {data['dtype']}, {'at the same time (MPS)' if data['mps'] else 'in turns'}:\n"
    yield "| what | figure | asked |\n|---|---|---|"
    for row in data["rows"]:
        yield f"| {row['what']} | {row['figure']} | {row['asked']} |"
    yield f"| what was wrong, or did not happen | {data['wrong']} | 0 |"


def write(folder, command, target):
    folder = pathlib.Path(folder)
    lines = [HEAD, "```", (folder / "machine.txt").read_text().strip(), f"command: {command}", "```", "",
             "| tests | passed | failed | skipped |", "|---|---|---|---|", *tests(folder)]
    if (folder / "bench.json").exists():
        lines += bench(folder / "bench.json", folder / "torch.json")
    for path in sorted(folder.glob("sharing-*.json")):
        lines += sharing(path)
    if (folder / "skipped.txt").exists():
        lines += ["\nNot run, or failed:\n", *(f"- {line}" for line in (folder / "skipped.txt").read_text().splitlines())]
    if (folder / "notes.md").exists():
        lines += ["", (folder / "notes.md").read_text().strip()]
    target.write_text("\n".join(lines) + "\n")
    print(f"{target} is written")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not (pathlib.Path(sys.argv[1]) / "machine.txt").exists():
        sys.exit(f"{__doc__}\nFOLDER is what tests/gpu/run.sh has filled: it holds machine.txt")
    write(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "tests/gpu/run.sh", pathlib.Path(__file__).parent / "RESULTS.md")
