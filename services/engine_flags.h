// SPDX-License-Identifier: Apache-2.0
// The flags of swiftcache-engine, checked as far as flags alone can be.
//
//   EngineFlags flags;
//   if (std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "engine/exec/engine_options.h"
#include "engine/models/create_model.h"
#include "services/flags.h"
#include "services/log_flags.h"

namespace swiftcache::services {

/// Thread-safety: a value.
struct EngineFlags {
  std::string model, model_name, name, backend = "auto", dtype = "auto", kv_cache_dtype = "bf16";
  std::string activations = "auto", isa = "auto";  // of a CPU
  std::string broker = "127.0.0.1:50050", listen = "127.0.0.1:50061", http_listen = "127.0.0.1:9181", advertise;
  int64_t threads = 0;  // 0: all cores that it may use, shared with the machine's other engines
  bool cuda_graphs = true, remap_on_return = false;
  absl::Duration drain_timeout = absl::Seconds(30);
  engine::exec::EngineOptions engine;
  // Sharing of KV memory.
  std::string transport = "auto", stream = "auto", shm_dir;
  bool lend = true;
  int64_t lend_reserve_bytes = 0;
  absl::Duration link_latency;
  int64_t link_gbps = 0;
  LogFlags log;
  std::string changed;  // Flags::Changed

  /// As Flags::Parse. Afterwards model_name is set.
  std::optional<int> Parse(int argc, char** argv);
  engine::models::ComputeDtype compute_dtype() const;
  /// What it is called until the broker has given it a name: --name, else that of its model.
  const std::string& wanted_name() const { return name.empty() ? model_name : name; }

 private:
  void ParseSharing(Flags& flags);
};

}  // namespace swiftcache::services
