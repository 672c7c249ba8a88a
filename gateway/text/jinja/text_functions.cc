// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/text_functions.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/text_search.h"
#include "gateway/text/jinja/unicode.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr int64_t kChunkBytes = 4096;

void AppendEscaped(const Text& text, TextBuilder& out) {
  if (text.safe) return out.Append(text);
  MarkCursor marks(text);
  for (int64_t at = 0; at < text.size() && out.ok(); ++at) {
    switch (text.bytes[static_cast<size_t>(at)]) {
      case '&':
        out.Append("&amp;", marks.At(at));
        break;
      case '<':
        out.Append("&lt;", marks.At(at));
        break;
      case '>':
        out.Append("&gt;", marks.At(at));
        break;
      case '"':
        out.Append("&#34;", marks.At(at));
        break;
      case '\'':
        out.Append("&#39;", marks.At(at));
        break;
      default:
        out.Append(text, at, at + 1);
    }
  }
}

/// Where the character that ends at `end` begins.
int64_t PreviousPoint(const std::string& bytes, int64_t end) {
  for (int64_t begin = std::max<int64_t>(end - 4, 0); begin < end - 1; ++begin) {
    int64_t at = begin;
    NextPoint(bytes, &at);
    if (at == end) return begin;
  }
  return end - 1;
}

std::u32string SortedPoints(const Text& text) {
  std::u32string points;
  for (int64_t at = 0; at < text.size();) points.push_back(NextPoint(text.bytes, &at));
  std::sort(points.begin(), points.end());
  return points;
}

/// Byte ranges found in a text, within the budget.
class Ranges {
 public:
  explicit Ranges(Budget& budget) : charge_(budget) {}
  bool Add(int64_t begin, int64_t end) {
    if (ok()) status_ = charge_.Grow(2 * sizeof(Mark));
    if (ok()) items_.push_back({begin, end});
    return ok();
  }
  void Fail(absl::Status status) { status_ = std::move(status); }
  void Reverse() { std::reverse(items_.begin(), items_.end()); }
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  const std::vector<Mark>& items() const { return items_; }
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  bool Reached(int64_t most) const { return !ok() || (most >= 0 && size() >= most); }

 private:
  Charge charge_;
  std::vector<Mark> items_;
  absl::Status status_;
};

Ranges SplitAtSpaces(Budget& budget, const Text& text, int64_t max_splits) {
  Ranges pieces(budget);
  int64_t begin = -1;
  for (int64_t at = 0; at < text.size() && pieces.ok();) {
    int64_t here = at;
    bool space = IsSpace(NextPoint(text.bytes, &at));
    if (space && begin >= 0) {
      pieces.Add(begin, here);
      begin = -1;
    } else if (!space && begin < 0) {
      begin = here;
      if (pieces.Reached(max_splits)) break;
    }
  }
  if (begin >= 0) pieces.Add(begin, text.size());
  return pieces;
}

int64_t StripRight(const std::string& bytes, int64_t end) {
  while (end > 0) {
    int64_t at = PreviousPoint(bytes, end), begin = at;
    if (!IsSpace(NextPoint(bytes, &at))) break;
    end = begin;
  }
  return end;
}

Ranges SplitAtSpacesFromRight(Budget& budget, const Text& text, int64_t max_splits) {
  Ranges pieces(budget);
  int64_t end = StripRight(text.bytes, text.size());
  while (end > 0 && pieces.ok()) {
    int64_t begin = pieces.Reached(max_splits) ? 0 : end;
    while (begin > 0 && !pieces.Reached(max_splits)) {
      int64_t at = PreviousPoint(text.bytes, begin), here = at;
      if (IsSpace(NextPoint(text.bytes, &at))) break;
      begin = here;
    }
    bool last = pieces.Reached(max_splits);
    pieces.Add(begin, end);
    end = last ? 0 : StripRight(text.bytes, begin);
  }
  pieces.Reverse();
  return pieces;
}

Ranges Occurrences(Budget& budget, const std::string& bytes, const std::string& wanted, int64_t most) {
  Ranges found(budget);
  if (wanted.size() > bytes.size()) return found;
  absl::StatusOr<TextSearch> search = TextSearch::Create(budget, wanted);
  if (!search.ok()) found.Fail(search.status());
  for (int64_t at = 0; !found.Reached(most);) {
    int64_t begin = search->Find(bytes, at);
    if (begin < 0) break;
    at = begin + static_cast<int64_t>(wanted.size());
    found.Add(begin, at);
  }
  return found;
}

Ranges OccurrencesFromRight(Budget& budget, const std::string& bytes, const std::string& wanted, int64_t most) {
  Ranges found(budget);
  size_t limit = bytes.size();
  while (!found.Reached(most) && wanted.size() <= limit) {
    size_t begin = bytes.rfind(wanted, limit - wanted.size());
    if (begin == std::string::npos) break;
    found.Add(static_cast<int64_t>(begin), static_cast<int64_t>(begin + wanted.size()));
    limit = begin;
  }
  found.Reverse();
  return found;
}

Ranges Between(Budget& budget, const Ranges& cuts, int64_t size) {
  Ranges pieces(budget);
  int64_t begin = 0;
  for (Mark cut : cuts.items()) {
    if (!pieces.Add(begin, cut.begin)) break;
    begin = cut.end;
  }
  pieces.Add(begin, size);
  return pieces;
}

absl::StatusOr<Value> Pieces(Budget& budget, const Text& text, const Ranges& ranges) {
  RETURN_IF_ERROR(ranges.status());
  ListBuilder out(budget);
  for (Mark range : ranges.items()) {
    ASSIGN_OR_RETURN(Value piece, Substring(budget, text, range.begin, range.end));
    if (!out.Add(std::move(piece))) break;
  }
  return out.Finish();
}

/// Replacing the empty string puts the new text before every character and at the end.
Ranges Gaps(Budget& budget, const Text& text, int64_t most) {
  Ranges gaps(budget);
  for (int64_t at = 0; !gaps.Reached(most);) {
    gaps.Add(at, at);
    if (at >= text.size()) break;
    NextPoint(text.bytes, &at);
  }
  return gaps;
}

}  // namespace

absl::StatusOr<Value> ConcatTexts(Budget& budget, const Text& left, const Text& right) {
  TextBuilder out(budget);
  bool safe = left.safe || right.safe;
  for (const Text* text : {&left, &right}) {
    if (safe) {
      AppendEscaped(*text, out);
    } else {
      out.Append(*text);
    }
  }
  out.SetSafe(safe);
  return FinishString(out);
}

absl::StatusOr<Value> RepeatText(Budget& budget, const Text& text, int64_t times) {
  TextBuilder out(budget);
  times = text.bytes.empty() ? 0 : std::max<int64_t>(times, 0);
  out.Reserve(CheckedMul(text.size(), times).value_or(INT64_MAX));
  int64_t done = 0;
  if (!text.HasMarks() && text.size() < kChunkBytes) {  // short ones by the chunk
    std::string chunk;
    int64_t per_chunk = std::min(times, kChunkBytes / std::max<int64_t>(text.size(), 1));
    for (int64_t i = 0; i < per_chunk; ++i) chunk += text.bytes;
    for (; per_chunk > 0 && done + per_chunk <= times && out.ok(); done += per_chunk) out.Append(chunk);
  }
  for (; done < times && out.ok(); ++done) out.Append(text);
  out.SetSafe(text.safe);
  return FinishString(out);
}

absl::StatusOr<Value> Strip(Budget& budget, const Text& text, const Text* characters, Side side) {
  RETURN_IF_ERROR(budget.SpendBytes(text.size()));
  Charge charge(budget);
  if (characters != nullptr) RETURN_IF_ERROR(charge.Grow(4 * characters->size()));
  std::u32string points = characters == nullptr ? std::u32string() : SortedPoints(*characters);
  auto strips = [&](char32_t point) {
    return characters == nullptr ? IsSpace(point) : std::binary_search(points.begin(), points.end(), point);
  };
  int64_t begin = 0, end = text.size();
  while (side != Side::kRight && begin < end) {
    int64_t at = begin;
    if (!strips(NextPoint(text.bytes, &at))) break;
    begin = at;
  }
  while (side != Side::kLeft && begin < end) {
    int64_t at = PreviousPoint(text.bytes, end), here = at;
    if (!strips(NextPoint(text.bytes, &at))) break;
    end = here;
  }
  return Substring(budget, text, begin, end);
}

absl::StatusOr<Value> Split(Budget& budget, const Text& text, const Text* separator, int64_t max_splits,
                            bool from_right) {
  RETURN_IF_ERROR(budget.SpendBytes(text.size()));
  if (separator == nullptr) {
    return Pieces(
        budget, text,
        from_right ? SplitAtSpacesFromRight(budget, text, max_splits) : SplitAtSpaces(budget, text, max_splits));
  }
  // A search from the right compares naively.
  if (from_right) RETURN_IF_ERROR(budget.Spend(CheckedMul(text.size(), separator->size()).value_or(INT64_MAX) / 256));
  Ranges cuts = from_right ? OccurrencesFromRight(budget, text.bytes, separator->bytes, max_splits)
                           : Occurrences(budget, text.bytes, separator->bytes, max_splits);
  RETURN_IF_ERROR(cuts.status());
  return Pieces(budget, text, Between(budget, cuts, text.size()));
}

absl::StatusOr<Value> SplitLines(Budget& budget, const Text& text, bool keep_ends) {
  RETURN_IF_ERROR(budget.SpendBytes(text.size()));
  Ranges lines(budget);
  int64_t begin = 0;
  for (int64_t at = 0; at < text.size() && lines.ok();) {
    int64_t here = at;
    char32_t point = NextPoint(text.bytes, &at);
    bool ends = (point >= 0x0A && point <= 0x0D) || (point >= 0x1C && point <= 0x1E) || point == 0x85 ||
                point == 0x2028 || point == 0x2029;
    if (!ends) continue;
    if (point == '\r' && at < text.size() && text.bytes[static_cast<size_t>(at)] == '\n') ++at;
    lines.Add(begin, keep_ends ? at : here);
    begin = at;
  }
  if (begin < text.size()) lines.Add(begin, text.size());
  return Pieces(budget, text, lines);
}

absl::StatusOr<Value> Replace(Budget& budget, const Text& text, const Text& old_text, const Text& new_text,
                              int64_t count) {
  RETURN_IF_ERROR(budget.SpendBytes(text.size()));
  Ranges cuts =
      old_text.bytes.empty() ? Gaps(budget, text, count) : Occurrences(budget, text.bytes, old_text.bytes, count);
  RETURN_IF_ERROR(cuts.status());
  TextBuilder out(budget);
  int64_t at = 0;
  for (Mark cut : cuts.items()) {
    out.Append(text, at, cut.begin);
    out.Append(new_text);
    at = cut.end;
    if (!out.ok()) break;
  }
  out.Append(text, at, text.size());
  return FinishString(out);
}

absl::StatusOr<Value> EscapeHtml(Budget& budget, const Text& text) {
  TextBuilder out(budget);
  AppendEscaped(text, out);
  out.SetSafe(true);
  return FinishString(out);
}

absl::StatusOr<Value> MapPoints(Budget& budget, const Text& text, const PointMapping& mapping) {
  TextBuilder out(budget);
  MarkCursor marks(text);
  std::string mapped;
  for (int64_t at = 0; at < text.size() && out.ok();) {
    int64_t begin = at;
    mapped.clear();
    mapping(NextPoint(text.bytes, &at), &mapped);
    out.Append(mapped, marks.At(begin));
  }
  out.SetSafe(text.safe);
  return FinishString(out);
}

absl::StatusOr<Value> UpperText(Budget& budget, const Text& text) {
  return MapPoints(budget, text, [](char32_t point, std::string* out) { AppendUpper(out, point); });
}

absl::StatusOr<Value> LowerText(Budget& budget, const Text& text) {
  return MapPoints(budget, text, [](char32_t point, std::string* out) { AppendLower(out, point); });
}

absl::StatusOr<Value> CapitalizeText(Budget& budget, const Text& text) {
  return MapPoints(budget, text, [first = true](char32_t point, std::string* out) mutable {
    first ? AppendTitle(out, point) : AppendLower(out, point);
    first = false;
  });
}

absl::StatusOr<Value> TitleText(Budget& budget, const Text& text, bool filter_rules) {
  static constexpr std::u32string_view kBeforeWords = U"-({[<";
  return MapPoints(budget, text, [filter_rules, begins = true](char32_t point, std::string* out) mutable {
    if (filter_rules) {
      begins ? AppendUpper(out, point) : AppendLower(out, point);
      begins = IsSpace(point) || kBeforeWords.find(point) != std::u32string_view::npos;
    } else {
      begins ? AppendTitle(out, point) : AppendLower(out, point);
      begins = !IsUpper(point) && !IsLower(point);
    }
  });
}

absl::StatusOr<Value> Characters(Budget& budget, const Text& text) {
  ListBuilder out(budget);
  RETURN_IF_ERROR(budget.SpendBytes(text.size()));
  for (int64_t at = 0; at < text.size();) {
    int64_t begin = at;
    NextPoint(text.bytes, &at);
    ASSIGN_OR_RETURN(Value character, Substring(budget, text, begin, at));
    if (!out.Add(std::move(character))) break;
  }
  return out.Finish();
}

}  // namespace swiftcache::gateway::text::jinja
