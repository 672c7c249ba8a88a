// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/weight_uploader.h"

#include <algorithm>
#include <cstring>

#include "common/base/status_macros.h"
#include "engine/backend/cuda/cuda_memory.h"

namespace swiftcache::engine::backend::cuda {

absl::Status WeightUploader::Upload(const WeightSource& source, Number number, uint64_t out) {
  const absl::Status status = Submit(source, number, out);
  if (!status.ok()) driver_.Finish(stream_);
  return status;
}

absl::Status WeightUploader::Submit(const WeightSource& source, Number number, uint64_t out) {
  const int64_t rows_at_once = std::max<int64_t>(1, kBufferBytes / source.row_bytes);
  const int64_t stored_bytes = RowBytes(source.format, source.cols);  // what is a row's alone of row_bytes
  for (int64_t first = 0; first < source.rows; first += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, source.rows - first);
    Buffer& buffer = buffers_[next_];
    next_ = 1 - next_;
    RETURN_IF_ERROR(Prepare(buffer, rows * stored_bytes));
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(buffer.host.data() + r * stored_bytes, source.Row(first + r), static_cast<size_t>(stored_bytes));
    }
    const DeviceCopy copy = {.to = buffer.device.address(),
                             .from = reinterpret_cast<uint64_t>(buffer.host.data()),
                             .bytes = rows * stored_bytes};
    RETURN_IF_ERROR(driver_.Copy(stream_, {&copy, 1}));
    const uint64_t place = out + static_cast<uint64_t>(first * source.cols * BytesOf(number));
    RETURN_IF_ERROR(kernels_.Decode(stream_, {.format = source.format,
                                              .blocks = buffer.device.as<const uint8_t>(),
                                              .num_blocks = rows * (source.cols / BlockOf(source.format).elements),
                                              .number = number,
                                              .out = reinterpret_cast<void*>(place)}));
    buffer.decoded = fences_.Record();
  }
  return absl::OkStatus();
}

absl::Status WeightUploader::Prepare(Buffer& buffer, int64_t bytes) {
  buffer.decoded.Wait();
  if (!buffer.decoded.Passed()) driver_.Finish(stream_);
  if (buffer.host.bytes() >= bytes) return absl::OkStatus();
  const int64_t size = std::max(kBufferBytes, bytes);
  ASSIGN_OR_RETURN(buffer.host, PinnedBytes::Allocate(driver_, size));
  ASSIGN_OR_RETURN(buffer.device, DeviceBytes::Allocate(driver_, size));
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::backend::cuda
