# SPDX-License-Identifier: Apache-2.0
"""hf_folder.py MODEL.gguf FOLDER: the model as vLLM reads it, weights in bf16. Runs in vLLM's own environment."""
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

file, folder = pathlib.Path(sys.argv[1]), sys.argv[2]
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).to(torch.bfloat16)
model.hf_quantizer = None  # what it holds are weights like any, which it would not save otherwise
del model.config.quantization_config
model.config.dtype = torch.bfloat16
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
