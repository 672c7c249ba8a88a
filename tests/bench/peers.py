# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode beside llama.cpp: the same files, the same threads, in turns. tests/bench/run.sh calls it.

A column is a kind of work, a line a file. Each figure is the median of --rounds rounds, in each of which every program
does the column once, one after the other, and both sides in turns first: shared machines change their speed from minute to
minute. Every round counts; where a stall has hit one, run all of them again, or more. Both sides run the model alone, without
server or sampling, prompts in steps of 512 tokens: swiftcache-engine-bench, llama-bench and llama-batched-bench.

`ratio` compares with llama.cpp on the same file, `best` with the fastest of llama.cpp's files of that model and column,
whichever it is: one sequence is asked of the first, prompts and sequences together of the second. `share` is ours of what the machine
could do, measured in the same round: of oneDNN's GEMMs of a prompt alone, in the type that we compute in; of reading
weights and KV once as fast as memory gives them (bandwidth.h), `stored_share` the same on the file's bytes.
"""
import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys

from model_files import Shape, convert, llama_quantize, write_random
from peers_plot import plot

FORMATS = ("Q4_0", "Q4_1", "Q8_0", "F16", "Q4_K_M", "Q6_K")
# With fewer layers than models of such widths have, and so many fewer words that the table of words, which the logits are
# made with, has their share of all weights: 20 and 11 % (Llama 3.2 1B: 21, 3B: 12).
SHAPES = {"hidden 2,048": Shape(hidden=2048, inner=5632, layers=12, heads=32, kv_heads=8, vocabulary=65536),
          "hidden 3,072": Shape(hidden=3072, inner=8192, layers=8, heads=24, kv_heads=8, vocabulary=32768)}
DECODED = 24  # tokens of a decode


class Column:
    """`prompt` tokens of one sequence, or one token each of `sequences` that have `depth` tokens."""

    def __init__(self, prompt=0, sequences=0, depth=0):
        self.prompt, self.sequences, self.depth = prompt, sequences, depth
        self.name = f"prefill {prompt:,}" if prompt else f"decode of {sequences} at {depth:,}"

    def ours(self, flags, model, extra=()):
        said = run(flags, [flags.bin / "swiftcache-engine-bench", "--json", "--model", model, "--threads", flags.threads,
                           "--prompt", self.prompt, "--sequences", self.sequences, "--context", max(1, self.depth),
                           "--repeats", 3, *extra])
        half = json.loads(said)["prefill" if self.prompt else "decode"]
        return half["tokens_s"], half["share"], half.get("stored_share", half["share"])

    def theirs(self, flags, model):
        if self.sequences > 1:
            said = run(flags, [flags.llama / "llama-batched-bench", "-m", model, "-t", flags.threads, "-c",
                               self.sequences * (self.depth + DECODED), "-b", 2048, "-ub", 512, "-npp", self.depth, "-ntg",
                               DECODED, "-npl", self.sequences, "--output-format", "jsonl"])
            return [json.loads(line) for line in said.splitlines() if line.startswith("{")][-1]["speed_tg"]
        said = run(flags, [flags.llama / "llama-bench", "-m", model, "-t", flags.threads, "-r", 2, "--no-warmup", "-o", "json",
                           "-p", self.prompt, "-n", 0 if self.prompt else DECODED, "-d", self.depth])
        return json.loads(said)[-1]["samples_ts"][-1]  # the first one warms up


def run(flags, command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=900)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def peer(isa):
    """The folder of llama-bench; it is built where it is missing."""
    done = subprocess.run([pathlib.Path(__file__).with_name("llama.sh"), *([isa] if isa else [])], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("llama.cpp could not be built (above)")
    return pathlib.Path(done.stdout.strip())


def columns(flags):
    if flags.quick:
        return [Column(prompt=512), Column(sequences=1, depth=512)]
    every = [Column(prompt=512), Column(prompt=2048), Column(sequences=1, depth=1), Column(sequences=1, depth=2048),
             Column(sequences=8, depth=512), Column(sequences=16, depth=512)]
    if flags.wide:
        every += [Column(prompt=128), Column(prompt=4096), Column(sequences=1, depth=6000), Column(sequences=2, depth=512),
                  Column(sequences=4, depth=512)]
    return [column for column in every if flags.only_work in column.name]


def files(flags):
    """Model -> format -> file, made where it is missing."""
    folder = flags.cache / "bench-models"
    folder.mkdir(parents=True, exist_ok=True)

    def made(name, make):
        path = folder / name
        if not path.exists():
            print(f"making {path}", file=sys.stderr)
            make(path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        return path

    def smollm2(f):
        if f == "Q4_1":
            return flags.model
        if f == "F16":
            return made("smollm2-F16.gguf", lambda path: convert(flags.model, f, path))
        return made(f"smollm2-quantized-{f}.gguf", lambda path: llama_quantize(flags.llama, smollm2("F16"), f, path))

    def random(name, f):
        shape = SHAPES[name]
        return made(f"h{shape.hidden}x{shape.layers}v{shape.vocabulary}-{f}.gguf", lambda path: write_random(shape, f, path))

    formats = ("Q4_1", "Q8_0") if flags.quick else [f for f in FORMATS if flags.only_format in f]
    makers = {"SmolLM2-135M": smollm2} | {name: functools.partial(random, name) for name in SHAPES}
    wanted = ["SmolLM2-135M"] if flags.quick else [name for name in makers if flags.only in name]
    return {name: {f: makers[name](f) for f in formats} for name in wanted}


def measure(flags, models):
    figures = []
    for model, by_format in models.items():
        for column in columns(flags):
            samples = {f: {"ours": [], "share": [], "stored_share": [], "theirs": []} for f in by_format}
            for number in range(flags.rounds):
                for place, (f, path) in enumerate(by_format.items()):
                    if place % 2 != number % 2:
                        samples[f]["theirs"].append(column.theirs(flags, path))
                    lower = ["--isa", flags.isa] if flags.isa else []
                    ours = column.ours(flags, path, [*lower, "--activations", flags.activations])
                    for what, value in zip(("ours", "share", "stored_share"), ours):
                        samples[f][what].append(value)
                    if place % 2 == number % 2:
                        samples[f]["theirs"].append(column.theirs(flags, path))
            medians = {f: {k: statistics.median(v) for k, v in s.items()} for f, s in samples.items()}
            best = max(medians[f]["theirs"] for f in medians)
            for f, m in medians.items():
                figures.append({"model": model, "format": f, "column": column.name, "ratio": m["ours"] / m["theirs"],
                                "best": m["ours"] / best, **m, "rounds": samples[f]})
                print(f"{model} {f} {column.name}: {m['ours']:.0f} and {m['theirs']:.0f}", file=sys.stderr)
    return figures


def tables(figures):
    """A line for each file, a column for each kind of work: the figures, then the shares of the machine."""
    names = list(dict.fromkeys(f["column"] for f in figures))
    cells = {(f["model"], f["format"], f["column"]): f for f in figures}

    def table(cell):
        rows = [f"| {model} | {form} | " + " | ".join(cell(cells[model, form, name]) for name in names) + " |"
                for model, form in dict.fromkeys((f["model"], f["format"]) for f in figures)]
        return "\n".join(["| model | file | " + " | ".join(names) + " |", "|---" * (2 + len(names)) + "|", *rows])

    def share(f):
        return f"{f['share']:.2f}" + (f", {f['stored_share']:.2f}" if f["column"].startswith("decode") else "")

    return ("tokens/s, ours / llama.cpp = ratio on the same file, ratio to its fastest file\n\n" +
            table(lambda f: f"{f['ours']:.4g} / {f['theirs']:.4g} = {f['ratio']:.2f}, {f['best']:.2f}") +
            "\n\nshare of oneDNN's products; of reading what a step reads at the memory's bandwidth, and on the file's bytes\n\n" +
            table(share))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of swiftcache-engine-bench")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="SmolLM2's Q4_1 file")
    parser.add_argument("--cache", type=pathlib.Path, required=True, help="folder for the files that are made")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two columns, two files, SmolLM2 alone")
    parser.add_argument("--wide", action="store_true", help="five columns more: prompts of 128 and 4,096, 6,000 deep, 2 and 4 together")
    parser.add_argument("--only", default="", help="models whose names contain this")
    parser.add_argument("--only-format", default="", help="files of formats whose names contain this")
    parser.add_argument("--only-work", default="", help="columns whose names contain this")
    parser.add_argument("--isa", default="", help="a lower one by force, of both sides")
    parser.add_argument("--activations", default="auto", help="of ours")
    parser.add_argument("--json", type=pathlib.Path, help="the figures are written here, too")
    parser.add_argument("--plot", type=pathlib.Path, help="a picture of the ratios (.svg or .png); wants matplotlib")
    flags = parser.parse_args()
    flags.llama = peer(flags.isa)
    figures = measure(flags, files(flags))
    print(tables(figures))
    if flags.json:
        flags.json.write_text(json.dumps(figures, indent=1))
    if flags.plot:
        plot(figures, flags.plot)


main()
