// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cpu/cpu_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/cpu/cpu_kv_memory.h"
#include "engine/backend/cpu/kernels.h"
#include "engine/backend/cpu/quantized_panel.h"
#include "engine/memory/arena.h"

namespace swiftcache::engine::backend::cpu {

std::string CpuDevice::name() const {
  return absl::StrCat("cpu/", IsaName(BestIsa(options_.max_isa)), " with ", options_.threads,
                      options_.threads == 1 ? " thread" : " threads",
                      options_.core_share == nullptr ? "" : ", shared with the machine's other engines");
}

int64_t CpuDevice::PackedBytes(const WeightSource& source, Precision precision) const {
  const std::optional<QuantizedLayout> layout =
      QuantizedLayoutOf(source.format, /*int8=*/false);  // or true: as many bytes
  if (precision != Precision::kBf16 || !layout) return Device::PackedBytes(source, precision);
  return PadToPanel(source.rows) / kPanelCols * layout->panel_bytes(source.cols);
}

absl::StatusOr<std::unique_ptr<Backend>> CpuDevice::CreateBackend(const BackendOptions& options) {
  return CreateCpuBackend({.threads = options_.threads,
                           .core_share = options_.core_share,
                           .precision = options.precision,
                           .activations = options_.activations,
                           .max_isa = options_.max_isa,
                           .attention = options.attention,
                           .kv = options.kv,
                           .inverse_frequencies = options.inverse_frequencies,
                           .max_rows = options.max_rows,
                           .space = options_.space});
}

absl::StatusOr<std::unique_ptr<KvMemory>> CpuDevice::CreateKvMemory(const KvMemoryOptions& options) {
  ASSIGN_OR_RETURN(memory::Arena arena, memory::Arena::Create({.bytes = options.bytes,
                                                               .block_bytes = options.block_bytes,
                                                               .shared = options.shared && options_.chunks}));
  return std::unique_ptr<KvMemory>(std::make_unique<CpuKvMemory>(std::move(arena), options_.space));
}

}  // namespace swiftcache::engine::backend::cpu
