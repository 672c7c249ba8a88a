// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "glog/logging.h"

namespace swiftcache::gateway::text {
namespace {

constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax = 1 << 20;
// Backtracks of one match: PCRE2's own default, and for long text a few passes over it, because a run of spaces is
// tried by more than one alternative before one takes it.
constexpr uint64_t kMatchLimit = 10'000'000;
constexpr uint64_t kMatchLimitPerByte = 4;
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr std::string_view kIndividualDigits = "\\p{N}";

// PCRE2's \s also takes U+180E, which is not White_Space; what the peers use (Oniguruma, Rust) does not.
constexpr std::string_view kWhiteSpaceRanges =
    "\\t-\\r\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

/// `regex` with \s and \S spelled out. \S within brackets stays: it cannot be, and it differs in U+180E alone.
std::string SpellOutWhiteSpace(std::string_view regex) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const char c = regex[i];
    if (c == '\\' && i + 1 < regex.size()) {
      const char escaped = regex[++i];
      if (escaped == 's') {
        absl::StrAppend(&out, in_class ? "" : "[", std::string(kWhiteSpaceRanges), in_class ? "" : "]");
      } else if (escaped == 'S' && !in_class) {
        absl::StrAppend(&out, "[^", std::string(kWhiteSpaceRanges), "]");
      } else {
        out.append({c, escaped});
      }
      continue;
    }
    const bool posix = in_class && regex.substr(i, 2) == "[:";  // [[:alpha:]]: its ']' does not end the class
    const size_t end = posix ? regex.find(":]", i) : std::string_view::npos;
    if (end != std::string_view::npos) {
      out.append(regex.substr(i, end + 2 - i));
      i = end + 1;
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out.push_back(c);
  }
  return out;
}

PCRE2_SPTR Bytes(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

struct Range {
  size_t begin = 0, end = 0;
};

/// The next match that is not empty; nothing if there is none, or if PCRE2 gave up.
std::optional<Range> FindMatch(const pcre2_code* code, std::string_view text, size_t from, pcre2_match_data* data,
                               pcre2_match_context* context) {
  constexpr uint32_t kOptions = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  int count = pcre2_match(code, Bytes(text), text.size(), from, kOptions, data, context);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
    count = pcre2_match(code, Bytes(text), text.size(), from, kOptions | PCRE2_NO_JIT, data, context);
  }
  if (count < 0) return std::nullopt;
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
  // \K within a look-ahead can put the beginning behind the end: no piece is cut there.
  if (offsets[0] < from || offsets[1] <= offsets[0]) return std::nullopt;
  return Range{offsets[0], offsets[1]};
}

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

absl::StatusOr<pcre2_code*> Compile(size_t step, const std::string& regex) {
  const std::string spelled = SpellOutWhiteSpace(regex);
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code = pcre2_compile(Bytes(spelled), spelled.size(), kOptions, &error, &offset, nullptr);
  if (code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("pre_tokenizer step ", step, ": '", regex,
                                                   "' is not a regular expression: ", ErrorText(error), " (at byte ",
                                                   offset, " of '", spelled, "'); wanted: PCRE2 syntax"));
  }
  // Without JIT (a hardened kernel) the same expression is interpreted: slower, same matches.
  const int jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  LOG_IF(WARNING, jit != 0) << "pre_tokenizer step " << step << " is interpreted: " << ErrorText(jit);
  return code;
}

}  // namespace

PreTokenizer::Scratch::Scratch()
    : context_(pcre2_match_context_create(nullptr)),
      data_(pcre2_match_data_create(1, nullptr)),
      jit_stack_(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)) {
  CHECK(context_ != nullptr && data_ != nullptr) << "out of memory";
  pcre2_set_heap_limit(context_, kHeapLimitKib);
  if (jit_stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, jit_stack_);
}

PreTokenizer::Scratch::~Scratch() {
  if (jit_stack_ != nullptr) pcre2_jit_stack_free(jit_stack_);
  pcre2_match_data_free(data_);
  pcre2_match_context_free(context_);
}

void PreTokenizer::CodeDeleter::operator()(pcre2_code* code) const { pcre2_code_free(code); }

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const std::vector<PreTokenizerStep>& steps) {
  PreTokenizer result;
  for (const PreTokenizerStep& step : steps) {
    const bool digits = step.kind == PreTokenizerStep::Kind::kIndividualDigits;
    ASSIGN_OR_RETURN(pcre2_code * code,
                     Compile(result.steps_.size(), digits ? std::string(kIndividualDigits) : step.regex));
    result.steps_.emplace_back(code);
  }
  return result;
}

void PreTokenizer::Split(std::string_view text, Scratch* scratch,
                         absl::FunctionRef<void(std::string_view)> piece) const {
  const uint64_t limit = kMatchLimit + kMatchLimitPerByte * text.size();
  pcre2_set_match_limit(scratch->context_, static_cast<uint32_t>(std::min<uint64_t>(limit, UINT32_MAX)));
  SplitFrom(0, text, scratch, piece);
}

void PreTokenizer::SplitFrom(size_t step, std::string_view text, Scratch* scratch,
                             absl::FunctionRef<void(std::string_view)> piece) const {
  if (text.empty()) return;
  if (step == steps_.size()) return piece(text);
  size_t done = 0;
  while (done < text.size()) {
    const auto match = FindMatch(steps_[step].get(), text, done, scratch->data_, scratch->context_);
    if (!match) break;
    SplitFrom(step + 1, text.substr(done, match->begin - done), scratch, piece);
    SplitFrom(step + 1, text.substr(match->begin, match->end - match->begin), scratch, piece);
    done = match->end;
  }
  SplitFrom(step + 1, text.substr(done), scratch, piece);
}

}  // namespace swiftcache::gateway::text
