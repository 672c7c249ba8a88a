// SPDX-License-Identifier: Apache-2.0
#include "services/engine_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/log/log.h"

namespace swiftcache::services {
namespace {

absl::StatusOr<std::unique_ptr<EngineDevice>> Choose(const EngineFlags& flags) {
  if (flags.backend == "cpu") return CreateCpuEngineDevice(flags);
  absl::StatusOr<std::unique_ptr<EngineDevice>> gpu = CreateCudaEngineDevice(flags);
  if (gpu.ok()) return gpu;
  if (flags.backend == "cuda") {
    return absl::FailedPreconditionError(absl::StrCat("--backend is cuda; ", gpu.status().message()));
  }
  // There is one, and what was said about it cannot be read, or does not suit it: that is mended, not passed over.
  if (absl::IsInvalidArgument(gpu.status())) return gpu;
  if (!absl::IsUnimplemented(gpu.status())) LOG(WARNING) << "--backend=auto takes the CPU: " << gpu.status().message();
  return CreateCpuEngineDevice(flags);
}

// With --transport=none it is as true as with --lend=false, and said for all engines at once by their environment.
absl::Status CheckRemaps(const EngineFlags& flags) {
  if (!flags.remap_on_return || flags.transport != "nccl") return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--remap_on_return is set and --transport is nccl, which shows nobody any memory that could be exchanged; drop "
      "--remap_on_return, or use --transport=cuda_ipc");
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineDevice>> CreateEngineDevice(const EngineFlags& flags) {
  RETURN_IF_ERROR(CheckRemaps(flags));
  absl::StatusOr<std::unique_ptr<EngineDevice>> device = Choose(flags);
  if (device.ok()) LOG(INFO) << "--backend=" << flags.backend << ": computes on " << (*device)->device().name();
  return device;
}

}  // namespace swiftcache::services
