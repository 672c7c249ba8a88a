// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/lending.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/log/log.h"

namespace swiftcache::engine::exec {

using coordinator::ClearMessage;
using coordinator::StopClearingMessage;
using coordinator::TakeBackMessage;
using coordinator::WithheldMessage;
using kv::Move;
using lease::PlacesOf;

namespace {

constexpr int64_t kMovesToClear = 64;  // own blocks that a loan may push aside
// To copy a byte takes as long as to zero so many: it is read, and what it overwrites is fetched first.
constexpr int64_t kCopyCost = 3;
// Clearing takes this part of the time since the last round, so that no token comes later by more. Where a round is so
// short that this is next to nothing it takes the shortest, and however long a round was at most the longest.
constexpr double kClearShare = 1.0 / 16;
constexpr absl::Duration kShortestClear = absl::Microseconds(100), kLongestClear = absl::Milliseconds(1);

}  // namespace

void Lending::Do(const ClearMessage& message) { clears_.push_back(message); }

void Lending::Do(const StopClearingMessage& message) {
  const auto is_it = [&](const auto& clear) { return clear.id == message.id; };
  if (std::erase_if(clears_, is_it) > 0) return parts_.coordinator->Cleared(message.id, false);
  const auto begun = std::find_if(clearing_.begin(), clearing_.end(), is_it);
  if (begun == clearing_.end()) return;
  StopClearing(*begun);
  clearing_.erase(begun);
}

void Lending::Do(const WithheldMessage& message) { parts_.cache->Withhold(PlacesOf(message.extent)); }

void Lending::Do(const TakeBackMessage& message) {
  parts_.cache->TakeBack(PlacesOf(message.extent));
  if (!need_) return;
  need_->returned_blocks += message.extent.num_blocks;
  if (need_->returned_blocks < need_->blocks) return;
  const absl::Duration waited = std::max(absl::ZeroDuration(), message.returned_at - need_->since);
  parts_.metrics->Reclaimed(waited);
  LOG(INFO) << "what was lent is back " << waited << " after it was needed, all of " << need_->blocks
            << " blocks, and taken " << parts_.clock->Now() - message.returned_at << " later";
  need_.reset();
}

// Nobody waits for the rest of it.
void Lending::EndNeed() {
  if (need_ && need_->returned_blocks > 0) {
    LOG(INFO) << "of " << need_->blocks << " blocks that were lent and needed the last "
              << need_->blocks - need_->returned_blocks << " are needed no more";
  }
  need_.reset();
}

void Lending::Advance() {
  Scrub();
  ClearSome();
}

void Lending::Scrub() {
  const std::vector<int32_t> dirty = parts_.cache->TakeDirty();
  if (!scrub_ || dirty.empty()) return;
  std::vector<backend::ByteRange> ranges;
  for (const int32_t place : dirty) ranges.push_back({parts_.own->At(place), parts_.own->block_bytes()});
  (void)parts_.own->Zero(ranges);
}

// Some bytes a round, whatever is to be lent, so that this engine's own tokens do not wait for all of it. What a round
// takes beyond its part is missing from the next ones.
void Lending::ClearSome() {
  if (need_) (void)StopAllClearing();
  const int64_t bytes = std::min<int64_t>(bytes_left_, 0) + BytesThisRound();
  bytes_left_ = bytes;
  while (bytes_left_ > 0 && (ZeroSome() || BeginClearing(bytes_left_ == bytes))) {
  }
  FinishClears();
  const bool idle = clears_.empty() && clearing_.empty();
  clears_wait_since_ = idle ? absl::InfiniteFuture() : parts_.clock->Now();
  if (idle) bytes_left_ = 0;
}

int64_t Lending::BytesIn(absl::Duration time) const {
  const double bytes = absl::ToDoubleMilliseconds(time) * static_cast<double>(parts_.own->bytes_in_a_millisecond());
  return std::max(parts_.own->block_bytes(), static_cast<int64_t>(bytes));
}

int64_t Lending::BytesThisRound() const {
  const absl::Duration round = std::max(absl::ZeroDuration(), parts_.clock->Now() - clears_wait_since_);
  return BytesIn(std::clamp(round * kClearShare, kShortestClear, kLongestClear));
}

// Another tenant's bytes leave the memory before it is lent; what comes back is scrubbed when it is next used.
// False: nothing is left to zero.
bool Lending::ZeroSome() {
  const auto next = std::find_if(clearing_.begin(), clearing_.end(), [](const Clearing& c) { return !c.left.empty(); });
  if (next == clearing_.end()) return false;
  backend::ByteRange& left = next->left.back();
  const backend::ByteRange now{left.begin, std::min(bytes_left_, left.bytes)};
  left = {now.begin + now.bytes, left.bytes - now.bytes};
  if (left.bytes == 0) next->left.pop_back();
  next->done = parts_.own->Zero({&now, 1});
  bytes_left_ -= now.bytes;
  return true;
}

// Of memory that was lent, what somebody has written to since it was zeroed.
std::vector<backend::ByteRange> Lending::ToZero(const lease::Extent& extent) const {
  std::vector<backend::ByteRange> ranges;
  if (!scrub_) return ranges;
  for (const kv::PlaceRun& run : parts_.cache->WrittenIn(PlacesOf(extent))) {
    ranges.push_back({parts_.own->At(run.first), run.count * parts_.own->block_bytes()});
  }
  std::reverse(ranges.begin(), ranges.end());
  return ranges;
}

// Own blocks leave the run, as many as this round has time for, and when all have, it is taken out of use. False: there
// is nothing more to begin with in this one.
bool Lending::BeginClearing(bool new_round) {
  if (clears_.empty()) return false;
  const ClearMessage clear = clears_.front();
  const kv::PlaceRun run = PlacesOf(clear.extent);
  const int64_t move_bytes = kCopyCost * parts_.own->block_bytes();
  const int64_t most_moves =
      new_round ? std::clamp<int64_t>(BytesIn(kLongestClear) / move_bytes, 1, kMovesToClear) : bytes_left_ / move_bytes;
  const std::optional<std::vector<Move>> moves = parts_.cache->ClearForLending(run, most_moves);
  if (moves) MoveAside(*moves);
  const bool lent = moves && parts_.cache->Lend(run);
  if (moves && !lent) return false;  // some have to move yet
  clears_.pop_front();
  std::vector<backend::ByteRange> to_zero = lent ? ToZero(clear.extent) : std::vector<backend::ByteRange>();
  if (to_zero.empty()) bytes_left_ -= parts_.own->block_bytes();  // for the attempt
  if (lent) {
    clearing_.push_back({clear.id, clear.extent, std::move(to_zero), parts_.own->last_change()});
  } else {
    parts_.coordinator->Cleared(clear.id, false);
  }
  return true;
}

void Lending::MoveAside(const std::vector<Move>& moves) {
  if (moves.empty()) return;
  const int64_t block_bytes = parts_.own->block_bytes();
  std::vector<backend::ByteMove> copies;
  for (const Move& move : moves) {
    copies.push_back({parts_.own->At(move.from.index), parts_.own->At(move.to.index), block_bytes});
  }
  (void)parts_.own->Copy(copies);
  for (const Move& move : moves) parts_.cache->FinishMove(move);
  bytes_left_ -= static_cast<int64_t>(moves.size()) * kCopyCost * block_bytes;
}

// A grant must not come before the device has done what was asked of it.
void Lending::FinishClears() {
  for (; !clearing_.empty() && clearing_.front().cleared(); clearing_.pop_front()) {
    const Clearing& clearing = clearing_.front();
    if (scrub_) parts_.cache->NoteZeroed(PlacesOf(clearing.extent));
    parts_.coordinator->Cleared(clearing.id, true);
  }
}

void Lending::AwaitClears() {
  if (!clearing_.empty()) clearing_.front().done.Wait();
  FinishClears();
}

void Lending::StopClearing(const Clearing& clearing) {
  parts_.cache->Unlend(PlacesOf(clearing.extent));
  parts_.coordinator->Cleared(clearing.id, false);
}

// Own tokens need the memory. Returns the blocks that are free again.
int64_t Lending::StopAllClearing() {
  const int64_t free = parts_.cache->local().free;
  for (const ClearMessage& clear : std::exchange(clears_, {})) parts_.coordinator->Cleared(clear.id, false);
  for (const Clearing& clearing : std::exchange(clearing_, {})) StopClearing(clearing);
  asks_again_ |= parts_.cache->local().free > free;
  return parts_.cache->local().free - free;
}

void Lending::StateNeed(int64_t missing_blocks) {
  asks_again_ = false;
  int64_t blocks = parts_.cache->TakeNeed();
  if (blocks > 0) {
    blocks = std::min(std::max(blocks, missing_blocks - parts_.cache->local().free), parts_.cache->num_leased_out());
  }
  if (blocks > 0 && !(clears_.empty() && clearing_.empty())) blocks -= StopAllClearing();
  if (blocks <= 0) {
    lacking_since_ = absl::InfinitePast();
    if (missing_blocks <= parts_.cache->local().free) EndNeed();
    return;
  }
  if (lacking_since_ == absl::InfinitePast()) lacking_since_ = parts_.clock->Now();
  if (!need_) need_ = {.since = parts_.clock->Now(), .blocks = blocks};
  parts_.coordinator->NeedBack(blocks, parts_.cache->num_leased_out());
}

void Lending::ForgetNeed() {
  lacking_since_ = absl::InfinitePast();
  EndNeed();
  asks_again_ = false;
}

bool Lending::ShouldDefer(const sched::StepPlan& plan) const {
  if (parts_.clock->Now() >= PatienceEnds()) return false;
  return std::none_of(plan.chunks.begin(), plan.chunks.end(), [](const sched::Chunk& chunk) { return chunk.samples; });
}

absl::Time Lending::NextWakeup() const {
  if (asks_again_ || !clears_.empty() || !clearing_.empty()) return absl::InfinitePast();
  return parts_.clock->Now() < PatienceEnds() ? PatienceEnds() : absl::InfiniteFuture();
}

}  // namespace swiftcache::engine::exec
