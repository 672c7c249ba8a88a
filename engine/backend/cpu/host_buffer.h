// SPDX-License-Identifier: Apache-2.0
// Activations of the CPU backend. Rows are padded to whole panels, so kernels write whole panels.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "engine/backend/backend.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/memory.h"

namespace swiftcache::engine::backend::cpu {

/// f32 [rows][stride], stride = PadToPanel(cols). Thread-safety: as plain memory. Errors: RESOURCE_EXHAUSTED.
class HostBuffer final : public Buffer {
 public:
  static absl::StatusOr<std::unique_ptr<HostBuffer>> Allocate(int64_t rows, int64_t cols) {
    auto buffer = std::unique_ptr<HostBuffer>(new HostBuffer(rows, cols));
    // One row more: kernels that read whole panels may begin anywhere in a row.
    ASSIGN_OR_RETURN(buffer->memory_,
                     HostMemory::Allocate((rows * buffer->stride_ + kPanelCols) * int64_t{sizeof(float)}));
    return buffer;
  }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t stride() const { return stride_; }
  float* row(int64_t r) const { return memory_.as<float>() + r * stride_; }

 private:
  HostBuffer(int64_t rows, int64_t cols) : rows_(rows), cols_(cols), stride_(PadToPanel(cols)) {}

  int64_t rows_, cols_, stride_;
  HostMemory memory_;
};

/// REQUIRES: `buffer` came from the CPU backend.
inline const HostBuffer& AsHost(const Buffer& buffer) { return static_cast<const HostBuffer&>(buffer); }

}  // namespace swiftcache::engine::backend::cpu
