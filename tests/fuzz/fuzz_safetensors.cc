// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file; the views it gives are read whole.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/loader/safetensors_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace swiftcache::engine::loader;
  const auto tensors = ParseSafetensors(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
  if (!tensors.ok()) return 0;
  volatile uint8_t sum = 0;
  for (const auto& [name, tensor] : *tensors) {
    for (const std::byte byte : tensor.data) sum = static_cast<uint8_t>(sum + std::to_integer<uint8_t>(byte));
  }
  return 0;
}
