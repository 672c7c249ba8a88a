// SPDX-License-Identifier: Apache-2.0
// A string of a template that remembers which of its bytes came out of a message's content.
//
//   TextBuilder out(budget);
//   out.Append("<|user|>");
//   out.Append(content);                      // keeps content's marks
//   ASSIGN_OR_RETURN(TextPtr text, out.Finish());
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gateway/text/jinja/budget.h"

namespace swiftcache::gateway::text::jinja {

/// Bytes [begin, end) came out of a message.
struct Mark {
  int64_t begin = 0, end = 0;
};

/// Thread-safety: immutable once shared. Ownership: owns its bytes. Units: offsets in bytes, `points` in code points.
struct Text {
  std::string bytes;
  std::vector<Mark> marks;  // sorted, apart from each other
  int64_t points = 0;
  bool safe = false;  // went through |safe: markupsafe's escaping on `+`
  Charge charge;

  int64_t size() const { return static_cast<int64_t>(bytes.size()); }
  bool IsAscii() const { return points == size(); }
  bool HasMarks() const { return !marks.empty(); }
};
using TextPtr = std::shared_ptr<const Text>;

/// A text of a literal or an input, free of charge.
TextPtr FreeText(std::string bytes, bool marked = false);

/// Reads through `text` and tells for ascending offsets whether they are marked.
class MarkCursor {
 public:
  explicit MarkCursor(const Text& text) : marks_(text.marks) {}
  bool At(int64_t offset) {
    while (next_ < marks_.size() && marks_[next_].end <= offset) ++next_;
    return next_ < marks_.size() && marks_[next_].begin <= offset;
  }

 private:
  const std::vector<Mark>& marks_;
  size_t next_ = 0;
};

/// Puts a text together within a budget. After the first failure it takes nothing more; Finish tells.
/// Thread-safety: none. Ownership: borrows the budget. Errors: RESOURCE_EXHAUSTED from Finish and status.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : charge_(budget) {}
  TextBuilder(Budget& budget, int64_t max_bytes) : charge_(budget), max_bytes_(max_bytes) {}

  void Append(std::string_view bytes, bool marked = false);
  void Append(const Text& text) { Append(text, 0, text.size()); }
  /// Bytes [begin, end) of `text` with their marks.
  void Append(const Text& text, int64_t begin, int64_t end);
  /// Makes room for `bytes` more, so that a large result fails before it is built.
  void Reserve(int64_t bytes);
  /// Pays for one more value that is written, however short it is.
  void Step();
  void Fail(absl::Status status);
  void SetSafe(bool safe) { safe_ = safe; }

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  absl::StatusOr<TextPtr> Finish();

 private:
  bool Grow(int64_t bytes);
  void AddMark(int64_t begin, int64_t end);

  Charge charge_;
  const int64_t max_bytes_ = INT64_MAX;
  int64_t reserved_ = 0;
  std::string bytes_;
  std::vector<Mark> marks_;
  bool safe_ = false;
  absl::Status status_;
};

}  // namespace swiftcache::gateway::text::jinja
