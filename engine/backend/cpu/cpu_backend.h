// SPDX-License-Identifier: Apache-2.0
// The backend for machines without a GPU, and the one that every other is compared with.
//
//   ASSIGN_OR_RETURN(auto backend, CreateCpuBackend({.threads = 2, .attention = {...}}));
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/address_space.h"
#include "engine/backend/backend.h"
#include "engine/backend/cpu/activations.h"
#include "engine/backend/cpu/isa.h"

namespace swiftcache::engine::backend::cpu {

class CoreShare;

struct CpuBackendOptions {
  int threads = 1;
  CoreShare* core_share = nullptr;  // where there is one, it says how many of them compute; borrowed
  Precision precision = Precision::kBf16;
  Activations activations = Activations::kAuto;
  Isa max_isa = kHighestIsa;  // a lower one is for tests, and for comparing machines
  AttentionShape attention = {};
  KvLayout kv = {};
  std::vector<float> inverse_frequencies = {};  // of rope, [head_dim / 2]
  int64_t max_rows = 512;                       // of a step
  AddressSpace space = {};                      // of the KV memory
};

/// Errors: INVALID_ARGUMENT (shapes that contradict each other), RESOURCE_EXHAUSTED (names the bytes).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options);

}  // namespace swiftcache::engine::backend::cpu
