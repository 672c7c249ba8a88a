// SPDX-License-Identifier: Apache-2.0
// A step's streaming by NCCL: one message a donor declares all of it; each layer is a group.
//
//   return std::make_unique<NcclSliceStream>(spec, after, borrower);
#pragma once

#include <cstdint>
#include <vector>

#include "engine/transport/nccl/nccl_borrower.h"
#include "engine/transport/nccl/nccl_transfer.h"
#include "engine/transport/transport.h"

namespace swiftcache::engine::transport::nccl {

/// Layer l + 1 travels while layer l computes: both ends have posted it by then, and the donor's send waits for the
/// receive, which waits in its stream for the fence that released its slots. A stream that ends before its last layer
/// receives the others all the same, for nobody: the donor has posted them.
/// Thread-safety, errors: SliceStream's. Ownership: borrows the borrower, which outlives it and its fences.
class NcclSliceStream final : public SliceStream {
 public:
  NcclSliceStream(const StreamSpec& spec, const backend::Fence& after, NcclBorrower& borrower);
  ~NcclSliceStream() override;

  backend::Fence Arrived(int64_t layer) override;
  void Release(int64_t layer, const backend::Fence& read) override;
  std::vector<kv::LeaseId> Lost() const override;
  std::vector<kv::LeaseId> End() override;

 private:
  const int64_t num_arrivals_;
  const bool first_is_there_;  // of all sources
  NcclBorrower& borrower_;
  const NcclBegun begun_;
  int64_t num_released_ = 0;
};

}  // namespace swiftcache::engine::transport::nccl
