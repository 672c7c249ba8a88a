// SPDX-License-Identifier: Apache-2.0
// Engines as broker tests register them.
#pragma once

#include <string>

#include "broker/membership/engine_status.h"

namespace swiftcache::broker {

inline membership::EngineInfo EngineNamed(const std::string& name, const std::string& instance_id = "i1",
                                          membership::EngineState state = membership::EngineState::kReady) {
  return {.name = name,
          .instance_id = instance_id,
          .model_name = "model",
          .address = "127.0.0.1:50061",
          .kv = {.num_layers = 30,
                 .num_kv_heads = 3,
                 .head_dim = 64,
                 .kv_cache_dtype = "bf16",
                 .block_tokens = 16,
                 .block_bytes = 2 * 2 * 30 * 3 * 64 * 16,
                 .num_blocks = 100},
          .max_model_len_tokens = 2048,
          .model_card_hash = "cafe",
          .state = state};
}

}  // namespace swiftcache::broker
