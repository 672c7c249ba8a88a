// SPDX-License-Identifier: Apache-2.0
// Matrices and buffers on a GPU.
//
//   ASSIGN_OR_RETURN(auto buffer, DeviceBuffer::Allocate(driver, rows, cols, Number::kF32, stream));
//   AsDevice(*buffer).data();                                // an address of the device: not to be read here
#pragma once

#include <glog/logging.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/numbers.h"
#include "engine/backend/cuda/packed_weights.h"

namespace swiftcache::engine::backend::cuda {

constexpr int64_t BytesOf(Number number) { return number == Number::kF32 ? 4 : 2; }

/// Packed weights, [rows][cols]. Thread-safety: immutable once packed. Ownership: owns the memory.
class DeviceMatrix final : public Matrix {
 public:
  DeviceMatrix(DeviceBytes memory, WeightFormat format, int64_t rows, int64_t cols)
      : memory_(std::move(memory)), format_(format), rows_(rows), cols_(cols) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  int64_t bytes() const override { return rows_ * RowBytes(format_, cols_); }
  PackedWeights weights() const { return PackedAt(format_, memory_.address(), rows_, cols_); }

 private:
  const DeviceBytes memory_;
  const WeightFormat format_;
  const int64_t rows_, cols_;
};

/// [rows][cols] of one number. Thread-safety: none. Ownership: owns the memory, or shares it with other vectors.
class DeviceBuffer final : public Buffer {
 public:
  /// Uninitialised; freed when the stream has done what it was given.
  static absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(Driver& driver, int64_t rows, int64_t cols,
                                                                Number number, Stream user) {
    absl::StatusOr<DeviceBytes> memory = DeviceBytes::Allocate(driver, rows * cols * BytesOf(number), user);
    if (!memory.ok()) return memory.status();
    const uint64_t address = memory->address();
    return std::make_unique<DeviceBuffer>(std::make_shared<const DeviceBytes>(*std::move(memory)), address, rows, cols,
                                          number);
  }
  /// What lies at `address` in `memory`.
  DeviceBuffer(std::shared_ptr<const DeviceBytes> memory, uint64_t address, int64_t rows, int64_t cols, Number number)
      : memory_(std::move(memory)), address_(address), rows_(rows), cols_(cols), number_(number) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  Number number() const { return number_; }
  int64_t bytes() const { return rows_ * cols_ * BytesOf(number_); }
  uint64_t address() const { return address_; }
  void* numbers() const { return reinterpret_cast<void*>(address_); }
  /// REQUIRES: f32.
  float* data() const {
    CHECK(number_ == Number::kF32) << "a buffer of bf16 is no operand of this";
    return reinterpret_cast<float*>(address_);
  }

 private:
  const std::shared_ptr<const DeviceBytes> memory_;
  const uint64_t address_;
  const int64_t rows_, cols_;
  const Number number_;
};

// A backend is handed what it made itself: see Backend.
inline const DeviceBuffer& AsDevice(const Buffer& buffer) { return static_cast<const DeviceBuffer&>(buffer); }
inline const DeviceMatrix& AsDevice(const Matrix& matrix) { return static_cast<const DeviceMatrix&>(matrix); }
inline const float* DataOrNull(const Buffer* buffer) { return buffer == nullptr ? nullptr : AsDevice(*buffer).data(); }

}  // namespace swiftcache::engine::backend::cuda
