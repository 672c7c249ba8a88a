#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's figures for what swiftcache-gpu-bench measures, on the same GPU: a model of Qwen3-8B's shape with random
weights, prefill of one prompt and decode by a CUDA graph, attention by whichever of its ways is fastest for the shape.

  tests/gpu/torch_bench.py [--json PATH] [--small]        exit code 3: no PyTorch, or it sees no GPU

KV lies in one tensor a layer (layer-major, no pages), so that this is what a GPU can do without any cache management."""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as missing:
    print(f"torch_bench: {missing}")
    sys.exit(3)

QWEN3_8B = {"layers": 36, "hidden": 4096, "inner": 12288, "heads": 32, "kv_heads": 8, "dim": 128, "vocab": 151936}
SMOLLM2 = {"layers": 30, "hidden": 576, "inner": 1536, "heads": 9, "kv_heads": 3, "dim": 64, "vocab": 49152}
WAYS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]


class Model:
    def __init__(self, shape):
        self.__dict__.update(shape)
        new = lambda rows, cols: torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16) * 0.02  # noqa: E731
        qkv = (self.heads + 2 * self.kv_heads) * self.dim
        self.layer = [(new(qkv, self.hidden), new(self.hidden, self.heads * self.dim), new(2 * self.inner, self.hidden),
                       new(self.hidden, self.inner)) for _ in range(self.layers)]
        self.embedding, self.head = new(self.vocab, self.hidden), new(self.vocab, self.hidden)
        self.norm = torch.ones(self.hidden, device="cuda", dtype=torch.bfloat16)

    def rope(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, ids, cos, sin, cache, at, way):
        """ids: [batch][rows]. cache: [layers] of (k, v), [batch][kv heads][tokens][dim]; new ones go to `at` and behind."""
        batch, rows = ids.shape
        x = self.embedding[ids]
        for (qkv, o, gate_up, down), (keys, values) in zip(self.layer, cache):
            h = F.linear(F.rms_norm(x, (self.hidden,), self.norm), qkv).view(batch, rows, -1, self.dim).transpose(1, 2)
            q, k, v = h.split((self.heads, self.kv_heads, self.kv_heads), 1)
            keys[:, :, at:at + rows] = self.rope(k, cos, sin)
            values[:, :, at:at + rows] = v
            with sdpa_kernel(way):
                attended = F.scaled_dot_product_attention(self.rope(q, cos, sin), keys[:, :, :at + rows], values[:, :, :at + rows],
                                                          is_causal=rows > 1, enable_gqa=True)
            x = x + F.linear(attended.transpose(1, 2).reshape(batch, rows, -1), o)
            gate, up = F.linear(F.rms_norm(x, (self.hidden,), self.norm), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.linear(F.rms_norm(x[:, -1], (self.hidden,), self.norm), self.head).argmax(-1)


def seconds(run, repeats):
    times = []
    for i in range(repeats + 2):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[2:])


def fastest(model, batch, context, rows, repeats, graph):
    """(seconds, way) of `rows` tokens of each sequence behind `context`; None where no way does it."""
    shape = (batch, model.kv_heads, context + rows, model.dim)
    cache = [tuple(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in "kv") for _ in range(model.layers)]
    ids = torch.randint(model.vocab, (batch, rows), device="cuda")
    angle = torch.randn(rows, model.dim // 2, device="cuda")
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    found = []
    for way in WAYS:
        if way == SDPBackend.MATH and rows * (context + rows) > 1 << 22:
            continue  # it would write all scores down
        run = lambda: model.forward(ids, cos, sin, cache, context, way)  # noqa: E731
        try:
            run()
            if graph:
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured):
                    run()
                run = captured.replay
            found.append((seconds(run, repeats), way.name))
        except RuntimeError as refused:
            print(f"torch_bench: {way.name} does not do {batch} of {rows} behind {context}: {str(refused).splitlines()[0]}")
    return min(found, default=None)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch_bench: PyTorch sees no GPU")
        return 3
    model, rows = Model(SMOLLM2 if args.small else QWEN3_8B), []

    def add(what, batch, context, new, repeats, graph):
        best = fastest(model, batch, context, new, repeats, graph)
        if best is None:
            return print(f"torch_bench: nothing does {what}")
        took, way = best
        rows.append({"what": what, "figure": took * 1e3, "unit": "ms", "how": way})
        print(f"{what:62} {took * 1e3:10.4g} ms  {way}", flush=True)
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"torch": torch.__version__, "rows": rows}, file, indent=1)

    for tokens in (512, 2048, 8192):
        add(f"prefill of {tokens} tokens", 1, 0, tokens, 5, False)
    for batch, context in ((1, 64), (1, 4096), (64, 4096)):
        add(f"decode of {batch} behind {context} tokens", batch, context, 1, 15, True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
