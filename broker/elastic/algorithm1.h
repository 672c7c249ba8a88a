// SPDX-License-Identifier: Apache-2.0
// SwiftCache's Algorithm 1, exactly as printed (section 3.4). It looks at one request at a time; the default policy
// (default_policy.h) looks at all of them.
//
//   Resize resize = ScaleUp(/*worker_blocks=*/10, /*block_tokens=*/16, /*meu_worker=*/4, /*meu_master=*/3, 200);
//   resize == Resize{4, 3};  // 13 blocks needed, 10 there: one unit
#pragma once

#include <cstdint>
#include <span>

namespace swiftcache::broker::elastic {

/// How many blocks change hands. The two numbers name the same memory, in blocks of the worker (the donor) and in
/// blocks of the master (the borrower).
struct Resize {
  int64_t worker_blocks = 0, master_blocks = 0;
  friend bool operator==(const Resize&, const Resize&) = default;
};

// Names: N_i = worker_blocks, B_i = block_tokens, MEU_i = meu_worker, MEU_m = meu_master. Units: blocks and tokens.
// REQUIRES of both: worker_blocks and tokens >= 0, block_tokens and both MEUs > 0. Pure.

/// Lines 10-19: what the worker takes back so that a request of `request_tokens` fits its blocks.
Resize ScaleUp(int64_t worker_blocks, int64_t block_tokens, int64_t meu_worker, int64_t meu_master,
               int64_t request_tokens);

/// Lines 21-31: what the worker gives up, given the lengths of the requests in the last t seconds.
Resize ScaleDown(int64_t worker_blocks, int64_t block_tokens, int64_t meu_worker, int64_t meu_master,
                 std::span<const int64_t> window_request_tokens);

}  // namespace swiftcache::broker::elastic
