// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt, which is loaded when a GPU is used: a binary that computes on CPUs does not want it.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<CublasLt> products, CublasLt::Load(driver));
//   RETURN_IF_ERROR(products->Multiply(stream, {.in = x, .rows = n, .weight = w, .outputs = m, .cols = k, .out = y, .out_cols = m}));
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/cuda/device_memory.h"
#include "engine/backend/cuda/kernels.h"

namespace swiftcache::engine::backend::cuda {

/// The algorithm of a shape is chosen when it is first multiplied and kept. Thread-safety: none. Ownership: owns the
/// library's handle and workspace. Errors: FAILED_PRECONDITION (no library: names it and the remedy), RESOURCE_EXHAUSTED,
/// INTERNAL (names the shape).
class CublasLt {
 public:
  static absl::StatusOr<std::unique_ptr<CublasLt>> Load(Driver& driver);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  /// As Kernels::Multiply.
  absl::Status Multiply(Stream stream, const ProductOp& op);

 private:
  struct Functions;
  struct Plan;
  // rows, outputs, columns, columns of `out`, number, that of `out`, add, bias.
  using Shape = std::tuple<int64_t, int64_t, int64_t, int64_t, Number, Number, bool, bool>;

  CublasLt() = default;
  absl::StatusOr<const Plan*> PlanOf(const ProductOp& op);

  static constexpr int64_t kWorkspaceBytes = 32 << 20;  // what cuBLASLt advises for Hopper
  std::unique_ptr<Functions> functions_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBytes workspace_;
  absl::flat_hash_map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace swiftcache::engine::backend::cuda
