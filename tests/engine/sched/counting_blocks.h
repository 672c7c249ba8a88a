// SPDX-License-Identifier: Apache-2.0
// A cache's blocks for a scheduler, which counts the questions that look at every block of many sequences.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/kv/sequence_blocks.h"

namespace swiftcache::engine::sched {

/// Thread-safety: none. Ownership: borrows `blocks`.
class CountingBlocks final : public kv::SequenceBlocks {
 public:
  explicit CountingBlocks(kv::SequenceBlocks* blocks) : blocks_(*blocks) {}
  /// Of HeldByNobodyElse.
  int64_t asked() const { return asked_; }
  /// Blocks, for where they lie.
  int64_t looked_at() const { return looked_at_; }
  /// Of Measure, and of NoteWish.
  int64_t measured() const { return measured_; }
  int64_t wishes() const { return wishes_; }

  int64_t HeldByNobodyElse(std::span<const kv::BlockTable* const> tables) const override {
    ++asked_;
    return blocks_.HeldByNobodyElse(tables);
  }

  int64_t block_tokens() const override { return blocks_.block_tokens(); }
  int64_t BlocksFor(int64_t tokens) const override { return blocks_.BlocksFor(tokens); }
  kv::PrefixTree::Length Measure(const std::string& salt, const kv::TokenView& tokens, bool local_only) const override {
    ++measured_;
    return blocks_.Measure(salt, tokens, local_only);
  }
  int64_t BlocksInUse(kv::PrefixTree::InUse& seen, const std::string& salt,
                      const kv::TokenView& tokens) const override {
    return blocks_.BlocksInUse(seen, salt, tokens);
  }
  Attached Attach(kv::BlockTable& table, const std::string& salt, const kv::TokenView& tokens,
                  bool local_only) override {
    return blocks_.Attach(table, salt, tokens, local_only);
  }
  Attached AttachMore(kv::BlockTable& table, const kv::TokenView& tokens, int64_t computed_tokens) override {
    return blocks_.AttachMore(table, tokens, computed_tokens);
  }
  int64_t UnknownTokens(const kv::BlockTable& table, const kv::TokenView& tokens, int64_t computed_tokens,
                        int64_t most) const override {
    return blocks_.UnknownTokens(table, tokens, computed_tokens, most);
  }
  kv::Growth Grow(kv::BlockTable& table, int64_t tokens, int64_t wish_tokens) override {
    return blocks_.Grow(table, tokens, wish_tokens);
  }
  int64_t Obtain(int64_t blocks) override { return blocks_.Obtain(blocks); }
  void Commit(kv::BlockTable& table, const kv::TokenView& tokens, int64_t computed_tokens) override {
    blocks_.Commit(table, tokens, computed_tokens);
  }
  void Release(kv::BlockTable& table) override { blocks_.Release(table); }
  void ReleaseForNow(kv::BlockTable& table) override { blocks_.ReleaseForNow(table); }
  void NoteWish(int64_t blocks) override {
    ++wishes_;
    blocks_.NoteWish(blocks);
  }
  kv::Place place(kv::BlockId id) const override {
    ++looked_at_;
    return blocks_.place(id);
  }
  kv::Filling filling(kv::BlockId id) const override { return blocks_.filling(id); }
  void FollowPlaces(const kv::BlockTable& table, kv::PlaceCursor& cursor,
                    absl::FunctionRef<void(int64_t)> changed) const override {
    blocks_.FollowPlaces(table, cursor, changed);
  }
  bool has_tiers() const override { return blocks_.has_tiers(); }
  kv::PlaceCounts leased_in() const override { return blocks_.leased_in(); }
  int64_t num_usable_local() const override { return blocks_.num_usable_local(); }
  int64_t num_usable() const override { return blocks_.num_usable(); }
  int64_t num_potential() const override { return blocks_.num_potential(); }
  int64_t num_available() const override { return blocks_.num_available(); }
  absl::Status CheckInvariants(std::span<const kv::BlockTable* const> tables) const override {
    return blocks_.CheckInvariants(tables);
  }

 private:
  kv::SequenceBlocks& blocks_;
  mutable int64_t asked_ = 0, looked_at_ = 0, measured_ = 0;
  int64_t wishes_ = 0;
};

}  // namespace swiftcache::engine::sched
