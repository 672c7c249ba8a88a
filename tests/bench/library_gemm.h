// SPDX-License-Identifier: Apache-2.0
// The yardstick: oneDNN's matrix product with weights packed as it likes best and its own threads.
//
//   LibraryGemm gemm(512, 576, 3072, /*bf16=*/true);
//   gemm.Run();
#pragma once

#include <cstdint>
#include <memory>

namespace swiftcache {

/// bf16 x bf16 -> f32, or f32 throughout. Thread-safety: none. Ownership: owns its matrices. Errors: oneDNN throws.
class LibraryGemm {
 public:
  LibraryGemm(int64_t rows, int64_t inputs, int64_t outputs, bool bf16);
  ~LibraryGemm();
  LibraryGemm(LibraryGemm&&) noexcept;
  void Run();
  double flops() const { return flops_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  double flops_;
};

/// Before the first LibraryGemm: forbids what is above AVX2.
void LimitLibraryToAvx2();

}  // namespace swiftcache
