// SPDX-License-Identifier: Apache-2.0
#include "engine/kv/block_allocator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace swiftcache::engine::kv {

BlockRef& BlockRef::operator=(BlockRef&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  allocator_ = std::exchange(other.allocator_, nullptr);
  id_ = other.id_;
  holder_ = other.holder_;
  return *this;
}

BlockRef BlockRef::Share(Holder holder) const {
  CHECK(allocator_ != nullptr);
  allocator_->Hold(id_, holder);
  return BlockRef(allocator_, id_, holder);
}

bool BlockRef::idle() const { return allocator_ != nullptr && allocator_->holds_[id_.value()].idle(); }

void BlockRef::Reset() {
  if (BlockAllocator* allocator = std::exchange(allocator_, nullptr)) allocator->Drop(id_, holder_);
}

BlockAllocator::BlockAllocator(int64_t num_blocks) : holds_(num_blocks), free_(num_blocks) {}

std::optional<std::vector<BlockRef>> BlockAllocator::Allocate(int64_t count, std::optional<BlockId> after) {
  if (count > free_.size()) return std::nullopt;
  std::vector<BlockRef> blocks;
  blocks.reserve(count);
  for (BlockId id : free_.Take(count, after)) {
    Hold(id, Holder::kSequence);
    blocks.push_back(BlockRef(this, id, Holder::kSequence));
  }
  return blocks;
}

void BlockAllocator::Hold(BlockId id, Holder holder) {
  Holds& holds = holds_[id.value()];
  const bool was_idle = holds.idle();
  if (holder == Holder::kCache) {
    CHECK(!holds.cache) << "block " << id << " is in the cache already";
    holds.cache = true;
  } else {
    ++holds.sequences;
  }
  num_cached_ += holds.idle() - was_idle;
}

void BlockAllocator::Drop(BlockId id, Holder holder) {
  Holds& holds = holds_[id.value()];
  const bool was_idle = holds.idle();
  if (holder == Holder::kCache) {
    holds.cache = false;
  } else {
    CHECK_GT(holds.sequences, 0);
    --holds.sequences;
  }
  num_cached_ += holds.idle() - was_idle;
  if (holds.free()) free_.Give(id);
}

absl::Status BlockAllocator::CheckInvariants() const {
  std::vector<bool> listed(holds_.size(), false);
  int64_t in_extents = 0;
  for (const auto& [start, length] : free_.extents()) {
    in_extents += length;
    for (int32_t i = start; i < start + length; ++i) listed[i] = true;
  }
  int64_t idle = 0;
  for (size_t i = 0; i < holds_.size(); ++i) {
    idle += holds_[i].idle();
    if (holds_[i].free() != listed[i]) {
      return absl::InternalError(absl::StrCat("block ", i, " has ", holds_[i].sequences, " holds by sequences and ",
                                              holds_[i].cache, " by the cache; in the free list: ", listed[i] ? 1 : 0));
    }
  }
  if (in_extents != free_.size() || idle != num_cached_) {
    return absl::InternalError(absl::StrCat("free blocks: listed ", in_extents, ", counted ", free_.size(),
                                            "; cached blocks: found ", idle, ", counted ", num_cached_));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::kv
