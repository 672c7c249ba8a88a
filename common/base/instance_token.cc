// SPDX-License-Identifier: Apache-2.0
#include "common/base/instance_token.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/name.h"
#include "common/base/sha256.h"

namespace swiftcache {

std::string InstanceIdOf(std::string_view token) { return Sha256Hex(token).substr(0, 32); }

absl::Status CheckToken(std::string_view instance_id, std::string_view token) {
  if (!token.empty() && instance_id == InstanceIdOf(token)) return absl::OkStatus();
  const absl::string_view shown(instance_id.data(), std::min(instance_id.size(), kMaxNameBytes));
  return absl::PermissionDeniedError(absl::StrCat("the token is not that of instance '", absl::CHexEscape(shown),
                                                  "'; an instance id is the beginning of its token's SHA-256"));
}

}  // namespace swiftcache
