// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: structure, configuration, tokenizer, weights, the first and last row of each tensor.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/cpu/dequantize.h"
#include "engine/loader/gguf_config.h"
#include "engine/loader/gguf_file.h"
#include "engine/loader/gguf_tokenizer.h"
#include "engine/loader/gguf_weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace swiftcache::engine::loader;
  namespace backend = swiftcache::engine::backend;
  const auto gguf = GgufFile::Parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!gguf.ok()) return 0;
  ReadGgufTokenizer(gguf->metadata()).IgnoreError();
  ReadGgufChatTemplate(gguf->metadata()).IgnoreError();
  const auto config = ReadGgufConfig(*gguf);
  if (!config.ok()) return 0;
  const auto tensors = ViewGgufTensors(*gguf, *config);
  if (!tensors.ok()) return 0;
  for (const auto& [name, source] : *tensors) {
    std::vector<float> row(source.cols);
    backend::cpu::DequantizeRow(source, 0, row.data());
    backend::cpu::DequantizeRow(source, source.rows - 1, row.data());
  }
  return 0;
}
