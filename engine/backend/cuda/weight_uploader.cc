// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/weight_uploader.h"

#include <algorithm>
#include <cstring>

#include "common/base/status_macros.h"
#include "engine/backend/cuda/cuda_memory.h"

namespace swiftcache::engine::backend::cuda {

absl::Status WeightUploader::Upload(const WeightSource& source, const PackedWeights& to) {
  const absl::Status status = Submit(source, to);
  if (!status.ok()) driver_.Finish(stream_);
  return status;
}

absl::Status WeightUploader::Submit(const WeightSource& source, const PackedWeights& to) {
  const int64_t rows_at_once = std::max<int64_t>(1, kBufferBytes / source.row_bytes);
  for (int64_t first = 0; first < source.rows; first += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, source.rows - first);
    Buffer& buffer = buffers_[next_];
    next_ = 1 - next_;
    RETURN_IF_ERROR(Prepare(buffer, rows * RowBytes(source.format, source.cols)));
    const PackedWeights place = FromRow(to, first, source.cols);
    RETURN_IF_ERROR(IsQuantized(to.format) ? UploadQuantized(buffer, source, first, rows, place)
                                           : UploadDecoded(buffer, source, first, rows, place));
    buffer.read = fences_.Record();
  }
  return absl::OkStatus();
}

absl::Status WeightUploader::UploadDecoded(Buffer& buffer, const WeightSource& source, int64_t first, int64_t rows,
                                           const PackedWeights& to) {
  const int64_t stored_bytes = RowBytes(source.format, source.cols);  // what is a row's alone of row_bytes
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(buffer.host.data() + r * stored_bytes, source.Row(first + r), static_cast<size_t>(stored_bytes));
  }
  const DeviceCopy copy = {.to = buffer.device.address(),
                           .from = reinterpret_cast<uint64_t>(buffer.host.data()),
                           .bytes = rows * stored_bytes};
  RETURN_IF_ERROR(driver_.Copy(stream_, {&copy, 1}));
  return kernels_.Decode(stream_, {.format = source.format,
                                   .blocks = buffer.device.as<const uint8_t>(),
                                   .num_blocks = rows * (source.cols / BlockOf(source.format).elements),
                                   .number = NumberOf(to.format),
                                   .out = const_cast<void*>(to.numbers)});
}

// The blocks are divided on their way through the buffer.
absl::Status WeightUploader::UploadQuantized(Buffer& buffer, const WeightSource& source, int64_t first, int64_t rows,
                                             const PackedWeights& to) {
  const int64_t blocks = source.cols / Bf16Run::kNumbers, code_bytes = rows * blocks * CodeBytes(to.format),
                half_bytes = rows * blocks * HalfBytes(to.format);
  std::byte *codes = buffer.host.data(), *halves = codes + code_bytes;
  const DeviceCopy copies[] = {
      {.to = reinterpret_cast<uint64_t>(to.numbers), .from = reinterpret_cast<uint64_t>(codes), .bytes = code_bytes},
      {.to = reinterpret_cast<uint64_t>(to.halves), .from = reinterpret_cast<uint64_t>(halves), .bytes = half_bytes}};
  WithQuantized(to.format, [&](auto format) {  // known when this is compiled, so that no copy is a call
    constexpr size_t of_halves = HalfBytes(format()), of_codes = CodeBytes(format());
    for (int64_t r = 0; r < rows; ++r) {
      const std::byte* block = source.Row(first + r);
      for (int64_t i = 0; i < blocks; ++i, block += of_halves + of_codes, halves += of_halves, codes += of_codes) {
        std::memcpy(halves, block, of_halves);
        std::memcpy(codes, block + of_halves, of_codes);
      }
    }
  });
  return driver_.Copy(stream_, copies);
}

absl::Status WeightUploader::Prepare(Buffer& buffer, int64_t bytes) {
  buffer.read.Wait();
  if (!buffer.read.Passed()) driver_.Finish(stream_);
  if (buffer.host.bytes() >= bytes) return absl::OkStatus();
  const int64_t size = std::max(kBufferBytes, bytes);
  ASSIGN_OR_RETURN(buffer.host, PinnedBytes::Allocate(driver_, size));
  ASSIGN_OR_RETURN(buffer.device, DeviceBytes::Allocate(driver_, size));
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::backend::cuda
