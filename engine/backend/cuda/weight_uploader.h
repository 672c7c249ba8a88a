// SPDX-License-Identifier: Apache-2.0
// Stored weights on their way to the device: through two pinned buffers in turn, decoded there, or as they are.
//
//   WeightUploader uploader(driver, kernels, stream);
//   RETURN_IF_ERROR(uploader.Upload(source, PackedAt(WeightFormat::kBf16, memory.address(), source.rows, source.cols)));
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/packed_weights.h"
#include "engine/backend/cuda/step_fence.h"
#include "engine/backend/weight_source.h"

namespace swiftcache::engine::backend::cuda {

/// Thread-safety: none. Ownership: owns the buffers, borrows what it was made of. Errors: the driver's.
class WeightUploader {
 public:
  WeightUploader(Driver& driver, Kernels& kernels, Stream stream)
      : driver_(driver), kernels_(kernels), stream_(stream), fences_(driver, stream) {}
  /// The rows of the matrix, in its order, to `to`. Returns when the source was read; what is set going later on the
  /// stream finds the weights there. After an error nothing of it is under way.
  /// REQUIRES: to.format is kF32, kBf16 or the source's.
  absl::Status Upload(const WeightSource& source, const PackedWeights& to);

 private:
  static constexpr int64_t kBufferBytes = 16 << 20;  // or a row, where that is longer
  struct Buffer {
    PinnedBytes host;
    DeviceBytes device;
    Fence read;  // what was in it last
  };
  absl::Status Submit(const WeightSource& source, const PackedWeights& to);
  absl::Status UploadDecoded(Buffer& buffer, const WeightSource& source, int64_t first, int64_t rows,
                             const PackedWeights& to);
  absl::Status UploadQuantized(Buffer& buffer, const WeightSource& source, int64_t first, int64_t rows,
                               const PackedWeights& to);
  absl::Status Prepare(Buffer& buffer, int64_t bytes);

  Driver& driver_;
  Kernels& kernels_;
  const Stream stream_;
  StepFences fences_;
  Buffer buffers_[2];
  int next_ = 0;
};

}  // namespace swiftcache::engine::backend::cuda
