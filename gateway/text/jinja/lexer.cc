// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/string_literal.h"
#include "gateway/text/jinja/unicode.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                           "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

/// "\r\n" and "\r" to "\n", and without the last newline: what jinja2 reads.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 >= source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool IsDigitByte(char c) { return c >= '0' && c <= '9'; }

size_t RightStripped(std::string_view text) {
  size_t end = 0;
  for (int64_t at = 0; at < static_cast<int64_t>(text.size());) {
    if (!IsSpace(NextPoint(text, &at))) end = static_cast<size_t>(at);
  }
  return end;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeNewlines(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) RETURN_IF_ERROR(NextPart());
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return std::string_view(source_).substr(at_); }
  bool StartsWith(std::string_view text) const { return Rest().starts_with(text); }

  void Advance(size_t n) {
    for (size_t i = 0; i < n && at_ < source_.size(); ++i, ++at_) {
      if (source_[at_] == '\n') {
        ++line_;
        line_begin_ = at_ + 1;
      }
    }
  }

  void Add(TokenKind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_, static_cast<int>(at_ - line_begin_) + 1});
  }

  absl::Status Error(std::string_view message) const {
    return SyntaxError(line_, static_cast<int>(at_ - line_begin_) + 1, message);
  }

  size_t FindTag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string::npos; at = source_.find('{', at + 1)) {
      char next = at + 1 < source_.size() ? source_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return std::string::npos;
  }

  /// Text up to a tag, with what white space control leaves of it.
  void AddText(size_t tag) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    bool is_tag = tag < source_.size();
    char sign = is_tag && tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string_view kept = text;
    if (is_tag && sign == '-') {
      kept = text.substr(0, RightStripped(text));
    } else if (is_tag && sign != '+' && source_[tag + 1] != '{') {
      kept = text.substr(0, LeftOfIndent(text));
    }
    if (!kept.empty()) Add(TokenKind::kText, std::string(kept));
    Advance(text.size());
  }

  /// lstrip_blocks: white space between the start of a line and a block goes away.
  size_t LeftOfIndent(std::string_view text) const {
    size_t newline = text.rfind('\n');
    size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    bool at_line_start = begin > 0 || line_starting_;
    return at_line_start && RightStripped(text.substr(begin)) == 0 ? begin : text.size();
  }

  absl::Status NextPart() {
    size_t tag = FindTag(at_);
    if (tag == std::string::npos) {
      AddText(source_.size());
      return absl::OkStatus();
    }
    AddText(tag);
    char kind = source_[at_ + 1];
    if (kind == '#') return SkipComment();
    if (kind == '%' && RawTagEnd(at_, "raw") > 0) return ReadRaw();
    Add(kind == '{' ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, std::string(Rest().substr(0, 2)));
    bool signed_begin = at_ + 2 < source_.size() && (source_[at_ + 2] == '-' || source_[at_ + 2] == '+');
    Advance(signed_begin ? 3 : 2);
    return ReadTag(kind == '{');
  }

  /// Moves behind the end of a tag that begins at at_ with an optional sign and `close`; newlines after it as the sign
  /// says.
  void FinishTag(char sign, bool trims_newline) {
    size_t begin = at_;
    Advance(sign == '\0' ? 2 : 3);
    if (sign == '-') {
      for (int64_t at = static_cast<int64_t>(at_); at_ < source_.size();) {
        if (!IsSpace(NextPoint(source_, &at))) break;
        Advance(static_cast<size_t>(at) - at_);
      }
    } else if (sign == '\0' && trims_newline && StartsWith("\n")) {
      Advance(1);
    }
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  absl::Status SkipComment() {
    bool signed_begin = at_ + 2 < source_.size() && (source_[at_ + 2] == '-' || source_[at_ + 2] == '+');
    size_t begin = at_ + (signed_begin ? 3 : 2);
    size_t end = source_.find("#}", begin);
    if (end == std::string::npos) return Error("Missing end of comment tag");
    char before = end > begin ? source_[end - 1] : '\0';
    char sign = before == '-' || before == '+' ? before : '\0';
    Advance((sign == '\0' ? end : end - 1) - at_);
    FinishTag(sign, /*trims_newline=*/true);
    return absl::OkStatus();
  }

  /// The length of the tag `{%- name` before its end `-%}`, or 0 where `at` begins no such tag.
  size_t RawTagEnd(size_t at, std::string_view name) const {
    std::string_view rest = std::string_view(source_).substr(at + 2);
    size_t i = !rest.empty() && (rest[0] == '-' || rest[0] == '+') ? 1 : 0;
    while (i < rest.size() && std::isspace(static_cast<unsigned char>(rest[i]))) ++i;
    if (!rest.substr(i).starts_with(name)) return 0;
    i += name.size();
    while (i < rest.size() && std::isspace(static_cast<unsigned char>(rest[i]))) ++i;
    std::string_view close = rest.substr(i);
    bool sign = close.starts_with("-%}") || (name == "endraw" && close.starts_with("+%}"));
    return sign || close.starts_with("%}") ? i + 2 : 0;
  }

  void FinishRawTag(size_t length, bool trims_newline) {
    Advance(length);
    FinishTag(source_[at_] == '%' ? '\0' : source_[at_], trims_newline);
  }

  absl::Status ReadRaw() {
    FinishRawTag(RawTagEnd(at_, "raw"), /*trims_newline=*/false);
    size_t end = source_.find("{%", at_);
    while (end != std::string::npos && RawTagEnd(end, "endraw") == 0) end = source_.find("{%", end + 2);
    if (end == std::string::npos) return Error("Missing end of raw directive");
    line_starting_ = false;
    AddText(end);
    FinishRawTag(RawTagEnd(at_, "endraw"), /*trims_newline=*/true);
    return absl::OkStatus();
  }

  absl::Status ReadTag(bool print) {
    brackets_.clear();
    while (true) {
      SkipSpace();
      if (at_ >= source_.size())
        return Error(print ? "unexpected end of template, '}}' wanted" : "unexpected end of template, '%}' wanted");
      if (brackets_.empty() && ReadTagEnd(print)) return absl::OkStatus();
      RETURN_IF_ERROR(ReadToken());
    }
  }

  bool ReadTagEnd(bool print) {
    std::string_view close = print ? "}}" : "%}";
    char sign = StartsWith("-") || (!print && StartsWith("+")) ? source_[at_] : '\0';
    if (!Rest().substr(sign == '\0' ? 0 : 1).starts_with(close)) return false;
    Add(print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, std::string(close));
    FinishTag(sign, /*trims_newline=*/!print);
    return true;
  }

  void SkipSpace() {
    for (int64_t at = static_cast<int64_t>(at_); at_ < source_.size();) {
      if (!IsSpace(NextPoint(source_, &at))) break;
      Advance(static_cast<size_t>(at) - at_);
    }
  }

  absl::Status ReadToken() {
    char c = source_[at_];
    if (c == '"' || c == '\'') return ReadString(c);
    if (IsDigitByte(c)) return ReadNumber();
    int64_t at = static_cast<int64_t>(at_);
    if (char32_t point = NextPoint(source_, &at); point != 0xFFFD && IsWord(point)) return ReadName();
    for (std::string_view op : kOperators) {
      if (StartsWith(op)) return ReadOperator(op);
    }
    return Error(absl::StrCat("unexpected char '", std::string(Rest().substr(0, static_cast<size_t>(at) - at_)), "'"));
  }

  absl::Status ReadName() {
    int64_t at = static_cast<int64_t>(at_);
    for (int64_t next = at; at < static_cast<int64_t>(source_.size()); at = next) {
      if (!IsWord(NextPoint(source_, &next))) break;
    }
    size_t size = static_cast<size_t>(at) - at_;
    Add(TokenKind::kName, std::string(Rest().substr(0, size)));
    Advance(size);
    return absl::OkStatus();
  }

  absl::Status ReadString(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error("a string without its closing quote");
    auto value = DecodeStringLiteral(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    if (!value) return Error("a string with an escape that cannot be decoded");
    Add(TokenKind::kString, *std::move(value));
    Advance(end + 1 - at_);
    return absl::OkStatus();
  }

  /// Digits with single underscores between them, from `from`; returns where they end.
  size_t Digits(size_t from) const {
    size_t end = from;
    while (end < source_.size() &&
           (IsDigitByte(source_[end]) ||
            (source_[end] == '_' && end > from && end + 1 < source_.size() && IsDigitByte(source_[end + 1])))) {
      ++end;
    }
    return end;
  }

  absl::Status ReadNumber() {
    size_t end = Digits(at_);
    bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    bool is_float = false;
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && IsDigitByte(source_[end + 1])) {
      end = Digits(end + 1);
      is_float = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < source_.size() && (source_[digits] == '+' || source_[digits] == '-')) ++digits;
      if (Digits(digits) > digits) {
        end = Digits(digits);
        is_float = true;
      }
    }
    std::string text;
    for (char c : Rest().substr(0, end - at_)) {
      if (c != '_') text += c;
    }
    if (!is_float && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos) {
      return Error("an integer may not begin with 0");
    }
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, text);
    Advance(end - at_);
    return absl::OkStatus();
  }

  absl::Status ReadOperator(std::string_view op) {
    static constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (size_t which = kOpen.find(op); op.size() == 1 && which != std::string_view::npos) brackets_ += kClose[which];
    if (op.size() == 1 && kClose.find(op) != std::string_view::npos) {
      if (brackets_.empty()) return Error(absl::StrCat("unexpected '", std::string(op), "'"));
      if (brackets_.back() != op[0]) {
        return Error(
            absl::StrCat("unexpected '", std::string(op), "', '", std::string(1, brackets_.back()), "' wanted"));
      }
      brackets_.pop_back();
    }
    Add(TokenKind::kOperator, std::string(op));
    Advance(op.size());
    return absl::OkStatus();
  }

  const std::string source_;
  size_t at_ = 0;
  size_t line_begin_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the last tag ended with a newline
  std::string brackets_;       // closing brackets that are awaited
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status SyntaxError(int line, int column, std::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("chat template, line ", line, ", column ", column, ": ", std::string(message)));
}

absl::Status NotSupported(int line, std::string_view message) {
  return absl::UnimplementedError(absl::StrCat("chat template, line ", line, ": ", std::string(message)));
}

absl::StatusOr<std::vector<Token>> Lex(std::string_view source) { return Lexer(source).Run(); }

}  // namespace swiftcache::gateway::text::jinja
