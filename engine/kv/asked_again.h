// SPDX-License-Identifier: Apache-2.0
// Whether prompts ask again for what was computed: a chat's mostly do, a stream of documents does not.
//
//   AskedAgain asked_again;
//   asked_again.NoteComputed();   // for each block
//   asked_again.NoteAsked(2);     // a prompt asked for so many: found for the first time, or taken along by a loan or a
//                                 // lease that went, which own memory alone would have kept (ReuseMeter)
//   if (asked_again.Mostly()) ... // what is computed now will be asked for again, too
#pragma once

#include <algorithm>
#include <cstdint>

namespace swiftcache::engine::kv {

/// Of the blocks computed of late, how many a prompt has asked for since. Thread-safety: a value. Errors: none. Units:
/// blocks.
class AskedAgain {
 public:
  static constexpr int64_t kRecent = 512;  // of more, the older count half
  static constexpr int64_t kLeast = 64;    // before anything is expected

  void NoteComputed() {
    if (++computed_ < kRecent) return;
    computed_ /= 2;
    asked_ /= 2;
  }
  /// What was asked for beyond what was computed of late is older than that.
  void NoteAsked(int64_t blocks) { asked_ = std::min(asked_ + blocks, computed_); }
  bool Mostly() const { return computed_ >= kLeast && 2 * asked_ > computed_; }

 private:
  int64_t computed_ = 0, asked_ = 0;
};

}  // namespace swiftcache::engine::kv
