// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/builders.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr int kMaxValueDepth = 100;
constexpr int64_t kContainerBytes = 128;
constexpr int64_t kItemBytes = 2 * sizeof(Value);  // vectors grow by doubling
constexpr int64_t kEntryBytes = 4 * sizeof(Value) + 96;

absl::Status TooDeep() {
  return absl::ResourceExhaustedError(
      absl::StrCat("the template nests values deeper than ", kMaxValueDepth, " levels: mend the template"));
}

}  // namespace

ListBuilder::ListBuilder(Budget& budget, ListKind kind) : budget_(budget), list_(std::make_shared<List>()) {
  list_->kind = kind;
  list_->charge = Charge(budget);
  status_ = list_->charge.Grow(kContainerBytes);
}

bool ListBuilder::Add(Value value) {
  if (ok()) status_ = budget_.Spend(1);
  if (ok()) status_ = list_->charge.Grow(kItemBytes);
  if (!ok()) return false;
  list_->depth = std::max(list_->depth, Depth(value) + 1);
  list_->items.push_back(std::move(value));
  return true;
}

absl::StatusOr<Value> ListBuilder::Finish() {
  RETURN_IF_ERROR(status_);
  if (list_->depth > kMaxValueDepth) return TooDeep();
  return Value(std::shared_ptr<const List>(std::move(list_)));
}

DictBuilder::DictBuilder(Budget& budget) : budget_(budget), dict_(std::make_shared<Dict>()) {
  dict_->charge = Charge(budget);
  status_ = dict_->charge.Grow(kContainerBytes);
}

bool DictBuilder::Add(Value key, Value value) {
  std::optional<std::string> hash;
  if (status_.ok()) {
    auto made = DictKey(budget_, key);
    status_ = made.status();
    if (made.ok()) hash = *std::move(made);
  }
  if (status_.ok() && !hash) {
    status_ = absl::InvalidArgumentError(absl::StrCat("unhashable type: '", std::string(TypeName(key)), "'"));
  }
  if (status_.ok()) status_ = dict_->charge.Grow(kEntryBytes + static_cast<int64_t>(hash->size()));
  if (!status_.ok()) return false;
  dict_->depth = std::max({dict_->depth, Depth(key) + 1, Depth(value) + 1});
  auto [place, fresh] = dict_->index.emplace(*hash, dict_->items.size());
  if (fresh) {
    dict_->items.emplace_back(std::move(key), std::move(value));
  } else {
    dict_->items[place->second].second = std::move(value);
  }
  return true;
}

absl::StatusOr<Value> DictBuilder::Finish() {
  RETURN_IF_ERROR(status_);
  if (dict_->depth > kMaxValueDepth) return TooDeep();
  return Value(std::shared_ptr<const Dict>(std::move(dict_)));
}

absl::StatusOr<Value> NewString(Budget& budget, std::string_view bytes, bool marked) {
  TextBuilder out(budget);
  out.Append(bytes, marked);
  return FinishString(out);
}

absl::StatusOr<Value> Substring(Budget& budget, const Text& text, int64_t begin, int64_t end) {
  TextBuilder out(budget);
  out.Append(text, begin, end);
  out.SetSafe(text.safe);
  return FinishString(out);
}

absl::StatusOr<Value> FinishString(TextBuilder& builder) {
  ASSIGN_OR_RETURN(TextPtr text, builder.Finish());
  return Value::String(std::move(text));
}

}  // namespace swiftcache::gateway::text::jinja
