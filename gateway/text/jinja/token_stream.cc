// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/token_stream.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace swiftcache::gateway::text::jinja {

absl::Status TokenStream::Unexpected(std::string_view wanted) const {
  std::string found = Is(TokenKind::kEnd) ? "the end of the template" : "'" + current().text.substr(0, 40) + "'";
  return Error(absl::StrCat("found ", found, ", wanted ", std::string(wanted)));
}

}  // namespace swiftcache::gateway::text::jinja
