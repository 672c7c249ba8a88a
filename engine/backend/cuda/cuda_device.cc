// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/cuda_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/backend/cuda/cuda_arena.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/cuda_kv_memory.h"
#include "engine/backend/cuda/packed_weights.h"

namespace swiftcache::engine::backend::cuda {

CudaDevice::CudaDevice(const Options& options, Driver& driver, std::unique_ptr<Kernels> kernels, Stream stream)
    : options_(options), driver_(driver), kernels_(std::move(kernels)), stream_(stream) {}

absl::StatusOr<std::unique_ptr<Device>> CudaDevice::Create(const Options& options, Driver& driver,
                                                           std::unique_ptr<Kernels> kernels) {
  ASSIGN_OR_RETURN(const Stream stream, driver.CreateStream());
  return std::unique_ptr<Device>(new CudaDevice(options, driver, std::move(kernels), stream));
}

CudaDevice::~CudaDevice() { driver_.DestroyStream(stream_); }

std::string CudaDevice::name() const {
  const DeviceInfo& info = driver_.info();
  return absl::StrCat("cuda/sm_", info.compute_major, info.compute_minor, " on ", info.name, " (", info.uuid, ")");
}

// A device that does not answer has nothing; what is asked of it next says why.
std::optional<DeviceMemory> CudaDevice::memory() const {
  DeviceMemory memory =
      Limited(driver_.memory().value_or(DeviceMemory()), options_.memory_limit, driver_.allocated_bytes());
  memory.id = driver_.info().uuid;
  return memory;
}

int64_t CudaDevice::PackedBytes(const WeightSource& source, Precision precision) const {
  return source.rows * RowBytes(FormatOnDevice(source.format, precision), source.cols);
}

absl::StatusOr<std::unique_ptr<Backend>> CudaDevice::CreateBackend(const BackendOptions& options) {
  return CudaBackend::Create(options, driver_, *kernels_, stream_, options_.graphs);
}

absl::StatusOr<std::unique_ptr<KvMemory>> CudaDevice::CreateKvMemory(const KvMemoryOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaArena> arena,
                   CudaArena::Create({.bytes = options.bytes,
                                      .block_bytes = options.block_bytes,
                                      .shared = options.shared && options_.shows_memory},
                                     driver_));
  return std::unique_ptr<KvMemory>(
      std::make_unique<CudaKvMemory>(std::move(arena), driver_, stream_, options_.lends_chunks));
}

}  // namespace swiftcache::engine::backend::cuda
