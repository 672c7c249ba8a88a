// SPDX-License-Identifier: Apache-2.0
// Turns a stream of token ids into a stream of text: whole characters only, and no part of a stop string.
//
//   Detokenizer out(*tokenizer, {"\n\n"}, TextStart::kContinuesPrompt);
//   for (int32_t id : ids) { send(out.Push(id)); if (out.stopped()) break; }
//   send(out.Flush());
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gateway/text/stop_matcher.h"
#include "gateway/text/tokenizer.h"

namespace swiftcache::gateway::text {

/// Whether the ids begin a text or continue a prompt. SentencePiece puts a space before a text; decoding drops it at
/// the beginning of the whole text, and only there.
enum class TextStart { kBeginsText, kContinuesPrompt };

/// Holds back bytes that may become part of a character or of a stop string.
/// The concatenated results equal Tokenizer::Decode(ids, skip_special = true) (for kContinuesPrompt: what the ids add
/// to the decoded prompt), cut before the first stop string: the one that is complete first; of several that are
/// complete at once, the longest. Empty stop strings never match. Linear in the text and in the summed length of the
/// stop strings.
/// Thread-safety: none, one per continuation. Ownership: borrows the tokenizer. Errors: none.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, const std::vector<std::string>& stop,
              TextStart start = TextStart::kBeginsText);
  /// `stop` at its beginning: one that several continuations share is built once.
  Detokenizer(const Tokenizer& tokenizer, const StopMatcher& stop, TextStart start);
  /// The text that this token completes; "" once stopped.
  std::string Push(int32_t id);
  /// What is still held back, at the end of the stream.
  std::string Flush();
  bool stopped() const { return stopped_; }

 private:
  std::string Release(bool at_end);
  std::string ReleaseBeforeStop(const std::string& text);
  std::string TakeHeld(size_t end);

  const Tokenizer& tokenizer_;
  StopMatcher stop_;
  std::string bytes_;  // an unfinished character
  std::string held_;   // from held_begin_: text that may begin a stop string
  size_t held_begin_ = 0;
  bool drop_space_;  // the whole text has not begun, and loses a leading space
  bool stopped_ = false;
};

}  // namespace swiftcache::gateway::text
