# SPDX-License-Identifier: Apache-2.0
"""Random blocks of every quantised format and their values: NAME.blocks and NAME.f32 (little-endian).
usage: pip install gguf==0.19.0; python make.py OUT_DIR"""
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "F16": [0], "BF16": []}
ELEMENTS = 2048


def blocks(rng, name):
    elements, size = GGML_QUANT_SIZES[T[name]]
    b = rng.integers(0, 256, (ELEMENTS // elements, size), dtype=np.uint8)
    for at in HALVES[name]:  # scales: every finite half, zeros and subnormals among them
        h = rng.integers(0, 0x7C00, len(b)).astype(np.uint16)
        h[:3] = (0, 1, 0x3FF)
        h |= (rng.integers(0, 2, len(b)) << 15).astype(np.uint16)
        b[:, at:at + 2] = h.view(np.uint8).reshape(-1, 2)
    if name == "BF16":  # no infinities, no NaNs
        b[:, 1] &= 0xBF
    return b


def main(out):
    rng = np.random.default_rng(146)
    for name in HALVES:
        b = blocks(rng, name)
        stored = b.reshape(1, -1)
        if name == "F16":
            stored = stored.view(np.float16)
        values = np.ascontiguousarray(dequantize(stored, T[name]), dtype="<f4")
        assert values.size == ELEMENTS and np.isfinite(values).all(), name
        (out / f"{name}.blocks").write_bytes(b.tobytes())
        (out / f"{name}.f32").write_bytes(values.tobytes())


main(Path(sys.argv[1]))
