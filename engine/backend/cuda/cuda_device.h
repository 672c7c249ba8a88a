// SPDX-License-Identifier: Apache-2.0
// One NVIDIA GPU as the engine sees it.
//
//   ASSIGN_OR_RETURN(auto device, CudaDevice::Create(driver, kernels));
//   ASSIGN_OR_RETURN(auto backend, device->CreateBackend(options));
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/backend/cuda/driver.h"
#include "engine/backend/cuda/kernels.h"
#include "engine/backend/cuda/memory_limit.h"
#include "engine/backend/device.h"

namespace swiftcache::engine::backend::cuda {

/// What it makes works on one stream, so that KV memory is zeroed and copied in the order of computing. Thread-safety,
/// errors: Device's. Ownership: owns kernels and stream, borrows the driver.
class CudaDevice final : public Device {
 public:
  struct Options {
    bool graphs = true;         // CudaBackend::Create
    bool lends_chunks = false;  // CudaKvMemory
    bool shows_memory = true;   // KV memory that is shared is mapped by others; if not, its contents are sent
    std::optional<MemoryLimit> memory_limit = {};
  };
  static absl::StatusOr<std::unique_ptr<Device>> Create(const Options& options, Driver& driver,
                                                        std::unique_ptr<Kernels> kernels);
  static absl::StatusOr<std::unique_ptr<Device>> Create(Driver& driver, std::unique_ptr<Kernels> kernels) {
    return Create(Options(), driver, std::move(kernels));
  }
  ~CudaDevice() override;

  std::string name() const override;
  std::optional<DeviceMemory> memory() const override;
  int64_t PackedBytes(const WeightSource& source, Precision precision) const override;
  absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) override;
  absl::StatusOr<std::unique_ptr<KvMemory>> CreateKvMemory(const KvMemoryOptions& options) override;

 private:
  CudaDevice(const Options& options, Driver& driver, std::unique_ptr<Kernels> kernels, Stream stream);
  const Options options_;
  Driver& driver_;
  const std::unique_ptr<Kernels> kernels_;
  const Stream stream_;
};

}  // namespace swiftcache::engine::backend::cuda
