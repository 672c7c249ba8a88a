// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces within which BPE merges: regular expressions, each run on the pieces of the one before.
//
//   ASSIGN_OR_RETURN(PreTokenizer pre, PreTokenizer::Create(spec.pre_tokenizer));
//   PreTokenizer::Scratch scratch;
//   pre.Split("Hello 12", &scratch, [](std::string_view piece) { ... });
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gateway/text/tokenizer_spec.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;
struct pcre2_real_jit_stack_8;

namespace swiftcache::gateway::text {

/// Every match is a piece, and so is the text between matches; empty matches are passed over. White space (\s) is
/// Unicode's White_Space. Where PCRE2 gives up on a text (its match limit), the rest of that text is one piece.
/// Thread-safety: immutable after Create; each call has its own Scratch. Ownership: owns the compiled expressions.
/// Errors: Create: INVALID_ARGUMENT names the step, the expression and what PCRE2 found wrong with it.
class PreTokenizer {
 public:
  /// What one thread needs to match; reusable. Thread-safety: none.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class PreTokenizer;
    pcre2_real_match_context_8* context_;
    pcre2_real_match_data_8* data_;
    pcre2_real_jit_stack_8* jit_stack_;
  };

  static absl::StatusOr<PreTokenizer> Create(const std::vector<PreTokenizerStep>& steps);

  /// Calls `piece` with the pieces in order; put together they are `text`. REQUIRES: valid UTF-8.
  void Split(std::string_view text, Scratch* scratch, absl::FunctionRef<void(std::string_view)> piece) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  void SplitFrom(size_t step, std::string_view text, Scratch* scratch,
                 absl::FunctionRef<void(std::string_view)> piece) const;

  std::vector<std::unique_ptr<pcre2_real_code_8, CodeDeleter>> steps_;
};

}  // namespace swiftcache::gateway::text
