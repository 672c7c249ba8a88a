// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/detokenizer.h"

#include <utility>

#include "gateway/text/normalizer.h"
#include "gateway/text/utf8.h"

namespace swiftcache::gateway::text {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, const std::vector<std::string>& stop, TextStart start)
    : Detokenizer(tokenizer, StopMatcher(stop), start) {}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, const StopMatcher& stop, TextStart start)
    : tokenizer_(tokenizer),
      stop_(stop),
      drop_space_(start == TextStart::kBeginsText && DropsLeadingSpace(tokenizer.spec())) {}

std::string Detokenizer::Push(int32_t id) {
  if (stopped_ || tokenizer_.IsSpecial(id)) return "";
  bytes_ += tokenizer_.TokenBytes(id);
  return Release(/*at_end=*/false);
}

std::string Detokenizer::Flush() {
  if (stopped_) return "";
  std::string text = Release(/*at_end=*/true);
  if (!stopped_) text += TakeHeld(held_.size());
  return text;
}

std::string Detokenizer::Release(bool at_end) {
  std::string text;
  MoveFinishedCharacters(&bytes_, &text);
  if (at_end) text += ReplaceInvalidUtf8(std::exchange(bytes_, ""));
  if (text.empty()) return text;
  if (std::exchange(drop_space_, false) && text[0] == ' ') text.erase(0, 1);
  return stop_.empty() ? text : ReleaseBeforeStop(text);
}

std::string Detokenizer::ReleaseBeforeStop(const std::string& text) {
  for (const char c : text) {
    held_.push_back(c);
    const int64_t length = stop_.Push(c);
    if (length == 0) continue;
    stopped_ = true;
    return TakeHeld(held_.size() - length);
  }
  return TakeHeld(held_.size() - stop_.pending());
}

/// The held text up to `end`. The front of held_ is cut off only when it outweighs the rest, so that a long held text
/// is not moved with every token.
std::string Detokenizer::TakeHeld(size_t end) {
  std::string text = held_.substr(held_begin_, end - held_begin_);
  held_begin_ = end;
  if (held_begin_ > held_.size() / 2) {
    held_.erase(0, held_begin_);
    held_begin_ = 0;
  }
  return text;
}

}  // namespace swiftcache::gateway::text
