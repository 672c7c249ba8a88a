// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/text_search.h"

#include <cstring>
#include <utility>

#include "common/base/status_macros.h"

namespace swiftcache::gateway::text::jinja {

TextSearch::TextSearch(std::string_view wanted, Charge charge)
    : wanted_(wanted), borders_(wanted.size()), charge_(std::move(charge)) {
  int64_t border = 0;
  for (size_t i = 1; i < wanted_.size(); ++i) {
    while (border > 0 && wanted_[i] != wanted_[static_cast<size_t>(border)]) {
      border = borders_[static_cast<size_t>(border - 1)];
    }
    border += wanted_[i] == wanted_[static_cast<size_t>(border)];
    borders_[i] = border;
  }
}

absl::StatusOr<TextSearch> TextSearch::Create(Budget& budget, std::string_view wanted) {
  Charge charge(budget);
  RETURN_IF_ERROR(charge.Grow(static_cast<int64_t>(wanted.size() * sizeof(int64_t))));
  return TextSearch(wanted, std::move(charge));
}

int64_t TextSearch::Find(std::string_view bytes, int64_t from) const {
  if (wanted_.empty()) return from <= static_cast<int64_t>(bytes.size()) ? from : -1;
  size_t matched = 0;
  for (size_t at = static_cast<size_t>(from); at < bytes.size(); ++at) {
    if (matched == 0) {
      const void* first = std::memchr(bytes.data() + at, wanted_[0], bytes.size() - at);
      if (first == nullptr) return -1;
      at = static_cast<size_t>(static_cast<const char*>(first) - bytes.data());
    }
    while (matched > 0 && bytes[at] != wanted_[matched]) matched = static_cast<size_t>(borders_[matched - 1]);
    matched += bytes[at] == wanted_[matched];
    if (matched == wanted_.size()) return static_cast<int64_t>(at + 1 - matched);
  }
  return -1;
}

absl::StatusOr<int64_t> FindOnce(Budget& budget, std::string_view bytes, std::string_view wanted) {
  if (wanted.size() > bytes.size()) return -1;
  RETURN_IF_ERROR(budget.SpendBytes(static_cast<int64_t>(bytes.size())));
  ASSIGN_OR_RETURN(TextSearch search, TextSearch::Create(budget, wanted));
  return search.Find(bytes, 0);
}

}  // namespace swiftcache::gateway::text::jinja
