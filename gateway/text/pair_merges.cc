// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/pair_merges.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace swiftcache::gateway::text {
namespace {
constexpr int32_t kGone = -1;  // a symbol that was merged into its left neighbour
}  // namespace

/// One run. The symbols form a linked list over the indices of their first characters. The candidates, as words of
/// (rank, index), are the initial pairs, sorted, and a heap of the pairs that arise later (sorting once is cheaper than
/// one heap of all). Entries are not removed when a neighbour changes: one counts only if its pair still has that rank.
class PairMerges::Session {
 public:
  Session(const PairMerges& merges, std::vector<int32_t>& symbols, Scratch& scratch)
      : merges_(merges),
        symbols_(symbols),
        next_(scratch.next),
        previous_(scratch.previous),
        sorted_(scratch.sorted),
        heap_(scratch.heap) {}

  void Run() {
    Fill();
    while (at_ < sorted_.size() || !heap_.empty()) {
      const uint64_t entry = Pop();
      MergeAt(static_cast<int32_t>(entry & 0xffffffff), static_cast<int32_t>(entry >> 32));
    }
    symbols_.erase(std::remove(symbols_.begin(), symbols_.end(), kGone), symbols_.end());
  }

 private:
  int32_t size() const { return static_cast<int32_t>(symbols_.size()); }

  void Fill() {
    next_.resize(size());
    previous_.resize(size());
    std::iota(next_.begin(), next_.end(), 1);
    std::iota(previous_.begin(), previous_.end(), -1);
    sorted_.clear();
    heap_.clear();
    for (int32_t place = 0; place < size(); ++place) AppendPair(place, &sorted_);
    std::sort(sorted_.begin(), sorted_.end());
  }

  /// Appends the pair that begins at `place`, if it may merge.
  bool AppendPair(int32_t place, std::vector<uint64_t>* entries) const {
    if (next_[place] == size()) return false;
    const Merge* merge = merges_.Find(symbols_[place], symbols_[next_[place]]);
    if (merge == nullptr) return false;
    entries->push_back(static_cast<uint64_t>(merge->rank) << 32 | static_cast<uint32_t>(place));
    return true;
  }

  void Push(int32_t place) {
    if (AppendPair(place, &heap_)) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  uint64_t Pop() {
    if (heap_.empty() || (at_ < sorted_.size() && sorted_[at_] <= heap_.front())) return sorted_[at_++];
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t entry = heap_.back();
    heap_.pop_back();
    return entry;
  }

  void MergeAt(int32_t place, int32_t rank) {
    if (symbols_[place] == kGone || next_[place] == size()) return;
    const int32_t right = next_[place];
    const Merge* merge = merges_.Find(symbols_[place], symbols_[right]);
    if (merge == nullptr || merge->rank != rank) return;
    symbols_[place] = merge->result;
    symbols_[right] = kGone;
    next_[place] = next_[right];
    if (next_[place] < size()) previous_[next_[place]] = place;
    Push(place);
    if (previous_[place] >= 0) Push(previous_[place]);
  }

  const PairMerges& merges_;
  std::vector<int32_t>& symbols_;
  std::vector<int32_t>& next_;
  std::vector<int32_t>& previous_;
  std::vector<uint64_t>& sorted_;
  std::vector<uint64_t>& heap_;
  size_t at_ = 0;  // the first of sorted_ that is left
};

void PairMerges::Run(std::vector<int32_t>* symbols, Scratch* scratch) const {
  if (symbols->size() > 1) Session(*this, *symbols, *scratch).Run();
}

}  // namespace swiftcache::gateway::text
