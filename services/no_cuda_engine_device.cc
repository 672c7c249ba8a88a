// SPDX-License-Identifier: Apache-2.0
// Where CUDA is not built in.
#include "services/engine_device.h"

namespace swiftcache::services {

absl::StatusOr<std::unique_ptr<EngineDevice>> CreateCudaEngineDevice(const EngineFlags&) {
  return absl::UnimplementedError("this build computes on CPUs alone: use --backend=cpu, or build the preset cuda");
}

}  // namespace swiftcache::services
