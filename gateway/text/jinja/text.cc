// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/text/jinja/unicode.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr int64_t kTextOverheadBytes = sizeof(Text) + 16;

}  // namespace

TextPtr FreeText(std::string bytes, bool marked) {
  auto text = std::make_shared<Text>();
  text->bytes = std::move(bytes);
  text->points = CountPoints(text->bytes);
  if (marked && !text->bytes.empty()) text->marks = {{0, text->size()}};
  return text;
}

bool TextBuilder::Grow(int64_t bytes) {
  if (!ok()) return false;
  int64_t size = static_cast<int64_t>(bytes_.size());
  if (bytes > max_bytes_ - size) {
    Fail(absl::ResourceExhaustedError(absl::StrCat("the template's output is longer than ", max_bytes_,
                                                   " bytes: shorten the conversation or mend the template")));
    return false;
  }
  int64_t fresh = std::max<int64_t>(bytes - reserved_, 0);
  reserved_ -= bytes - fresh;
  if (absl::Status status = charge_.Grow(fresh); !status.ok()) Fail(std::move(status));
  return ok();
}

void TextBuilder::Reserve(int64_t bytes) {
  if (ok() && bytes > reserved_ && Grow(bytes)) reserved_ = bytes;
}

void TextBuilder::Step() {
  if (absl::Status status = charge_.Spend(1); !status.ok()) Fail(std::move(status));
}

void TextBuilder::Fail(absl::Status status) {
  if (ok()) status_ = std::move(status);
}

void TextBuilder::AddMark(int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (!marks_.empty() && marks_.back().end == begin) {
    marks_.back().end = end;
  } else {
    if (absl::Status status = charge_.Grow(sizeof(Mark)); !status.ok()) return Fail(std::move(status));
    marks_.push_back({begin, end});
  }
}

void TextBuilder::Append(std::string_view bytes, bool marked) {
  if (!Grow(static_cast<int64_t>(bytes.size()))) return;
  int64_t begin = static_cast<int64_t>(bytes_.size());
  bytes_.append(bytes);
  if (marked) AddMark(begin, static_cast<int64_t>(bytes_.size()));
}

void TextBuilder::Append(const Text& text, int64_t begin, int64_t end) {
  if (begin >= end || !Grow(end - begin)) return;
  int64_t shift = static_cast<int64_t>(bytes_.size()) - begin;
  bytes_.append(text.bytes, static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  auto mark = std::partition_point(text.marks.begin(), text.marks.end(), [&](Mark m) { return m.end <= begin; });
  for (; mark != text.marks.end() && mark->begin < end && ok(); ++mark) {
    AddMark(std::max(mark->begin, begin) + shift, std::min(mark->end, end) + shift);
  }
}

absl::StatusOr<TextPtr> TextBuilder::Finish() {
  if (ok()) {
    if (absl::Status status = charge_.Grow(kTextOverheadBytes); !status.ok()) Fail(std::move(status));
  }
  if (!ok()) return status_;
  auto text = std::make_shared<Text>();
  text->bytes = std::move(bytes_);
  text->points = CountPoints(text->bytes);
  text->marks = std::move(marks_);
  text->safe = safe_;
  text->charge = std::move(charge_);
  return text;
}

}  // namespace swiftcache::gateway::text::jinja
