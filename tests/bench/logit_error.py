# SPDX-License-Identifier: Apache-2.0
"""How far the engine's logits are from exact ones: by format of the file, --dtype, --kv_cache_dtype, instruction set.

The reference of each file is that file's own weights in double precision (reference_decoder.py), so that the table
shows what the engine rounds, not what a format lost when the file was made. The reference itself is compared with the
logits in tests/data (transformers, f32) and with the engine in f32: the tool fails if they are 2e-3 apart.

With --llama another table: what rows are rounded to (--activations), and KV in 8 bits, beside llama.cpp on the same file:
mean and largest error, mean KL divergence from the reference, share of positions with the reference's most likely token.

F32, F16, BF16 and Q8_0 are made here from the Q4_1 file: its values, converted by the package `gguf`; vectors stay F32. Q4_K_M is
made of F16 by llama-quantize, which mixes formats.
Compared are the logits of every position of the sequences `ids_N` (N up to --longest) of tests/data.

    python3 -m venv venv && venv/bin/pip install numpy gguf
    cmake --build build/release --target swiftcache-model-logits
    venv/bin/python tests/bench/logit_error.py [--model SmolLM2-135M-Instruct.Q4_1.gguf] > table.md
    venv/bin/python tests/bench/logit_error.py --model ... --llama "$(tests/bench/llama.sh)" --longest 1024 > table.md
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from model_files import convert, llama_quantize
from reference_decoder import forward, read_model, read_safetensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
FORMATS = ("F32", "F16", "BF16", "Q8_0")
BESIDE_LLAMA = ("Q4_1", "Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q4_K_M", "F16")
ACTIVATIONS = ("auto", "int8", "bf16", "f32")
SETTINGS = (("auto", "bf16"), ("auto", "int8"), ("f32", "bf16"), ("f32", "int8"), ("f32", "f32"))  # --dtype, --kv_cache_dtype
LIMIT = 2e-3  # largest difference of what is f32 throughout


class Case:
    """A file, the sequences that it is asked, and its reference."""

    def __init__(self, name, stored, path, golden, longest, golden_is_of_this_file=True):
        tensors = read_safetensors(golden)
        lengths = sorted(int(key[4:]) for key in tensors if key.startswith("ids_"))
        self.name, self.stored, self.path = name, stored, path
        self.ids = [tensors[f"ids_{n}"] for n in lengths if n <= longest]
        model = read_model(path)
        parts = [forward(model, ids) for ids in self.ids]
        self.reference = np.concatenate(parts)
        if golden_is_of_this_file:
            differences = [np.abs(part[-1] - tensors[f"logits_{len(part)}"]).max() for part in parts]
            self.check(max(differences), "transformers, f32")

    def check(self, largest, against):
        print(f"{self.name} {self.stored}: reference and {against} differ by {largest:.2g} at most", file=sys.stderr)
        if not largest < LIMIT:
            sys.exit(f"{self.name} {self.stored}: that is too much, want less than {LIMIT}")

    def run(self, folder, command):
        """The logits that the program writes, and what it says of itself."""
        (folder / "ids").write_text("".join(" ".join(map(str, ids)) + "\n" for ids in self.ids))
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return np.fromfile(folder / "logits", "<f4").reshape(self.reference.shape), said

    def ours(self, binary, isa, folder, *flags):
        return self.run(folder, [binary, "--model", self.path, "--ids", folder / "ids", "--out", folder / "logits", "--isa",
                                 isa, *flags])

    def theirs(self, llama, folder, kv):
        return self.run(folder, [llama / "llama-logits", self.path, folder / "ids", folder / "logits", kv])

    def distances(self, found):
        """Mean and largest absolute difference, mean KL divergence, share of equal arg-maxes."""
        difference = np.abs(found - self.reference)
        divergence = [(np.exp(p) * (p - log_softmax(f.astype(np.float64)))).sum()
                      for f, p in zip(found, map(log_softmax, self.reference))]
        agree = (found.argmax(1) == self.reference.argmax(1)).mean()
        return f"{difference.mean():.2g} | {difference.max():.2g} | {np.mean(divergence):.2g} | {agree:.4f}"

    def error(self, binary, isa, dtype, kv, folder):
        """Mean and largest absolute difference, the share of positions whose likeliest token is the reference's, and what
        the engine says of itself."""
        found, said = self.ours(binary, isa, folder, "--dtype", dtype, "--kv", kv, "--activations", "bf16")
        difference = np.abs(found - self.reference)
        if dtype == kv == "f32":
            self.check(difference.max(), f"the engine in f32 ({isa})")
        agree = (found.argmax(1) == self.reference.argmax(1)).mean()
        return difference.mean(), difference.max(), agree, said.strip()


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def beside_llama(flags, folder):
    print("| model | file | rows | mean | largest | KL | greedy agreement |\n" + "|---" * 7 + "|")
    for name, q4_1, golden in (("SmolLM2-135M", flags.model, DATA / "smollm2/logits.safetensors"),
                               ("tiny-llama-a", DATA / "tiny-gguf/tiny-llama-a.q4_1.gguf",
                                DATA / "tiny-gguf/tiny-llama-a.q4_1.logits.safetensors")):
        for stored in flags.files:
            path = folder / f"{name}.{stored}.gguf"
            if stored == "Q4_1":
                path = q4_1
            elif stored == "Q4_K_M":
                llama_quantize(flags.llama, convert(q4_1, "F16", folder / f"{name}.F16.gguf"), stored, path)
            else:
                convert(q4_1, stored, path)
            case = Case(name, stored, path, golden, flags.longest, stored == "Q4_1")
            for isa in flags.isa:
                for activations, kv in (*((activations, "bf16") for activations in ACTIVATIONS), ("auto", "int8")):
                    found, said = case.ours(flags.binary, isa, folder, "--activations", activations, "--kv", kv)
                    print(f"{name} {stored}: {said.strip()}", file=sys.stderr)
                    print(f"| {name} | {stored} | {isa}, {activations}, KV {kv} | {case.distances(found)} |", flush=True)
            for kv in ("f16", "q8_0"):
                found, _ = case.theirs(flags.llama, folder, kv)
                print(f"| {name} | {stored} | llama.cpp, KV {kv} | {case.distances(found)} |", flush=True)


def cases(flags, folder):
    """One after the other, since a reference of SmolLM2 takes memory."""
    for name, q4_1, golden in (("SmolLM2-135M", flags.model, DATA / "smollm2/logits.safetensors"),
                               ("tiny-llama-a", DATA / "tiny-gguf/tiny-llama-a.q4_1.gguf",
                                DATA / "tiny-gguf/tiny-llama-a.q4_1.logits.safetensors")):
        if q4_1 is None:
            continue
        for stored in FORMATS:
            path = convert(q4_1, stored, folder / f"{name}.{stored}.gguf")
            yield Case(name, stored, path, golden, flags.longest, stored == "F32")  # F32 holds the Q4_1 file's values
            path.unlink()
        yield Case(name, "Q4_1", q4_1, golden, flags.longest)
    for name in ("tiny-llama-a", "tiny-llama-b", "tiny-qwen2", "tiny-qwen3"):
        folder = DATA / "tiny" / name
        yield Case(name + " (folder)", "BF16", folder, folder / "logits.safetensors", flags.longest)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, help="SmolLM2-135M-Instruct.Q4_1.gguf; without it the tiny models only")
    parser.add_argument("--binary", default=ROOT / "build/release/bin/swiftcache-model-logits")
    parser.add_argument("--isa", nargs="+", default=["avx512_bf16", "avx2"])
    parser.add_argument("--longest", type=int, default=257, help="tokens of the longest sequence compared")
    parser.add_argument("--llama", type=pathlib.Path, help="folder of llama-logits, for the table beside llama.cpp")
    parser.add_argument("--files", nargs="+", default=BESIDE_LLAMA, choices=BESIDE_LLAMA, help="lines of that table")
    flags = parser.parse_args()
    if flags.llama is not None:
        with tempfile.TemporaryDirectory() as name:
            beside_llama(flags, pathlib.Path(name))
        return
    columns = [f"`{dtype}`, KV {kv}" for dtype, kv in SETTINGS]
    print("| model | stored | `--isa` up to | " + " | ".join(columns) + " |\n" + "|---" * (3 + len(columns)) + "|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for case in cases(flags, folder):
            for isa in flags.isa:
                row = []
                for dtype, kv in SETTINGS:
                    mean, largest, agree, said = case.error(flags.binary, isa, dtype, kv, folder)
                    row.append(f"{mean:.2g} / {largest:.2g} / {100 * agree:.1f}")
                    print(f"{case.name} {case.stored}: {said}: {row[-1]}", file=sys.stderr)
                print(f"| {case.name} | {case.stored} | {isa} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
