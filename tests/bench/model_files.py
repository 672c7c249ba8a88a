# SPDX-License-Identifier: Apache-2.0
"""GGUF files for benchmarks: one model in other formats, and random weights of a model's shape.

  convert(q4_1, "Q8_0", folder / "q8_0.gguf")
  llama_quantize(llama, f16, "Q4_K_M", folder / "q4_k_m.gguf")
  write_random(Shape(hidden=2048, inner=5632, layers=12, heads=32, kv_heads=8, vocabulary=65536), "Q4_0", folder / "random.gguf")
"""
import dataclasses
import struct
import subprocess

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

ALIGNMENT = 32


def convert(source, format_name, target):
    """The GGUF file `source` with every matrix in another format; metadata as they are, byte for byte."""
    reader = GGUFReader(source)
    assert reader.alignment == ALIGNMENT
    raw = bytes(reader.data[:reader.tensors[0].field.offset])
    infos, data = b"", bytearray()
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        kind = GGMLQuantizationType[format_name if values.ndim > 1 else "F32"]
        stored = values if kind == GGMLQuantizationType.F32 else quantize(values, kind)
        name, dims = tensor.name.encode(), values.shape[::-1]
        infos += struct.pack(f"<Q{len(name)}sI{len(dims)}QIQ", len(name), name, len(dims), *dims, kind.value, len(data))
        data += stored.tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    head = raw + infos
    target.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
    return target


def llama_quantize(llama, source, format_name, target):
    """The file of that name as users have it: the program in the folder `llama` chooses a format for each matrix."""
    done = subprocess.run([llama / "llama-quantize", source, target, format_name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode != 0:
        raise RuntimeError(f"llama-quantize of {source} to {format_name} failed:\n{done.stdout[-2000:]}")
    return target


@dataclasses.dataclass
class Shape:
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


# Of a block's bytes: which two are a half that scales others, and the value that makes weights of about 0.02 of them.
SCALES = {"Q4_0": {0: 0x1400}, "Q4_1": {0: 0x1400, 2: 0x1400}, "Q8_0": {0: 0x0C00}, "Q4_K": {0: 0x0400, 2: 0x0F80},
          "Q6_K": {208: 0x0100}}


def chosen_format(file_format, matrix, layer, layers):
    """What llama-quantize stores a matrix of a Llama in, whose table of words makes the logits too, in files that are called so."""
    if matrix == "token_embd":
        return file_format if file_format in ("F16", "Q8_0") else "Q6_K"
    if file_format != "Q4_K_M":
        return file_format
    eighth = layers // 8
    more_bits = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if matrix in ("attn_v", "ffn_down") and more_bits else "Q4_K"


def write_random(shape, format_name, target):
    """A Llama with random weights, which take as long as any; its words are x1, x2, ..."""
    rng = np.random.default_rng(1)
    head_size = shape.hidden // shape.heads
    writer = GGUFWriter(target, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["t", "1", "t1"] + [f"x{i}" for i in range(shape.vocabulary - 3)])
    writer.add_token_types([1] * shape.vocabulary)
    writer.add_token_merges(["t 1"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)

    def matrix(name, rows, columns, layer=0):
        stored = chosen_format(format_name, name, layer, shape.layers)
        full_name = f"{name}.weight" if name == "token_embd" else f"blk.{layer}.{name}.weight"
        if stored == "F16":
            return writer.add_tensor(full_name, (rng.standard_normal((rows, columns), np.float32) * 0.02).astype(np.float16))
        kind = GGMLQuantizationType[stored]
        block, size = GGML_QUANT_SIZES[kind]
        data = rng.integers(0, 256, (rows * columns // block, size), np.uint8)
        for offset, half in SCALES[stored].items():
            data[:, offset:offset + 2] = np.array([half], np.uint16).view(np.uint8)
        return writer.add_tensor(full_name, data.reshape(rows, -1), raw_dtype=kind)

    def ones(name):
        writer.add_tensor(name, np.ones(shape.hidden, np.float32))

    matrix("token_embd", shape.vocabulary, shape.hidden)
    ones("output_norm.weight")
    for layer in range(shape.layers):
        prefix, kv = f"blk.{layer}.", shape.kv_heads * head_size
        ones(prefix + "attn_norm.weight")
        ones(prefix + "ffn_norm.weight")
        for name, rows, columns in (("attn_q", shape.hidden, shape.hidden), ("attn_k", kv, shape.hidden),
                                    ("attn_v", kv, shape.hidden), ("attn_output", shape.hidden, shape.hidden),
                                    ("ffn_gate", shape.inner, shape.hidden), ("ffn_up", shape.inner, shape.hidden),
                                    ("ffn_down", shape.hidden, shape.inner)):
            matrix(name, rows, columns, layer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
