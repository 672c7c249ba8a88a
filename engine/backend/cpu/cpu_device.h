// SPDX-License-Identifier: Apache-2.0
// The processors of this machine as a device.
//
//   CpuDevice device({.threads = 2});
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/backend/address_space.h"
#include "engine/backend/cpu/activations.h"
#include "engine/backend/cpu/isa.h"
#include "engine/backend/device.h"

namespace swiftcache::engine::backend::cpu {

class CoreShare;

struct CpuDeviceOptions {
  int threads = 1;
  CoreShare* core_share = nullptr;  // as CpuBackendOptions; borrowed
  Isa max_isa = kHighestIsa;        // a lower one is for tests, and for comparing machines
  Activations activations = Activations::kAuto;
  AddressSpace space = {};  // of the KV memory; another is for tests
  bool chunks = true;       // shared KV memory lies in chunks that others are shown; else Arena::Show shows its parts
};

/// Thread-safety, ownership, errors: Device's. KV memory is a CpuKvMemory.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : options_(options) {}
  std::string name() const override;
  std::optional<DeviceMemory> memory() const override { return std::nullopt; }
  int64_t PackedBytes(const WeightSource& source, Precision precision) const override;
  absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) override;
  absl::StatusOr<std::unique_ptr<KvMemory>> CreateKvMemory(const KvMemoryOptions& options) override;

 private:
  const CpuDeviceOptions options_;
};

}  // namespace swiftcache::engine::backend::cpu
