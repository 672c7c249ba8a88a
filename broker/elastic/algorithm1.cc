// SPDX-License-Identifier: Apache-2.0
#include "broker/elastic/algorithm1.h"

#include <algorithm>

#include "common/base/units.h"

namespace swiftcache::broker::elastic {

Resize ScaleUp(int64_t worker_blocks, int64_t block_tokens, int64_t meu_worker, int64_t meu_master,
               int64_t request_tokens) {
  const int64_t need = CeilDiv(request_tokens, block_tokens);                 // line 11
  if (need <= worker_blocks) return {};                                       // lines 12-13
  const int64_t diff = need - worker_blocks;                                  // line 15
  const int64_t k = CeilDiv(diff, meu_worker);                                // line 16
  return {.worker_blocks = k * meu_worker, .master_blocks = k * meu_master};  // line 17
}

Resize ScaleDown(int64_t worker_blocks, int64_t block_tokens, int64_t meu_worker, int64_t meu_master,
                 std::span<const int64_t> window_request_tokens) {
  int64_t max_len = 0;  // line 22
  for (const int64_t tokens : window_request_tokens) max_len = std::max(max_len, tokens);
  const int64_t max_need = CeilDiv(max_len, block_tokens);                    // line 23
  if (max_need >= worker_blocks) return {};                                   // lines 24-25
  const int64_t diff = worker_blocks - max_need;                              // line 27
  const int64_t k = diff / meu_worker;                                        // line 28
  return {.worker_blocks = k * meu_worker, .master_blocks = k * meu_master};  // line 29
}

}  // namespace swiftcache::broker::elastic
