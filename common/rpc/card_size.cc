// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/card_size.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/strings/str_cat.h"
#include "swiftcache/v1/engine.pb.h"

namespace swiftcache {

absl::Status CheckCardSize(const std::string& bytes) {
  if (static_cast<int64_t>(bytes.size()) > kMaxCardBytes) {
    return absl::InvalidArgumentError(absl::StrCat("model card: it has ", bytes.size(), " bytes, wants at most ",
                                                   kMaxCardBytes, ": serve a model with a smaller vocabulary"));
  }
  const grpc::Slice borrowed(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  const absl::Status status =
      CheckFieldCount(grpc::ByteBuffer(&borrowed, 1), *v1::ModelCard::descriptor(), kCardLimits);
  if (status.ok()) return status;
  if (status.message() != kCannotBeParsed)
    return absl::InvalidArgumentError(absl::StrCat("model card: ", status.message()));
  return absl::InvalidArgumentError(absl::StrCat("model card: ", bytes.size(), " bytes are not a ModelCard message"));
}

}  // namespace swiftcache
