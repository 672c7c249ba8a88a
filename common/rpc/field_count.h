// SPDX-License-Identifier: Apache-2.0
// Counts the fields of a message on the wire, before it is parsed: an empty message or text of two bytes becomes an
// object of some fifty, and so does a field that the parser does not know. A number of one byte takes up to twelve.
//
//   RETURN_IF_ERROR(CheckFieldCount(bytes, *v1::GenerateRequest::descriptor()));
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"

namespace swiftcache {

/// The most that a message may have.
struct FieldLimits {
  /// Above the some 96,500 of the largest request that a gateway takes: 4,096 messages of a chat, with three each, and
  /// four for each of the 21,024 different names of template variables that 64 KiB hold. Parsed, so many take at most
  /// 15 MB.
  int64_t fields = 1 << 17;
  /// In lists. Above the 1,048,576 ids that Detokenize takes and the tokens of any prompt; 50 MB at most.
  int64_t numbers = 1 << 22;
};
inline constexpr char kCannotBeParsed[] =
    "the request cannot be parsed: wanted the method's message, with text in UTF-8";

/// Whether `bytes`, a message of `type`, have at most so many fields at all depths together, each element of a list
/// and each field that `type` does not have counted, and at most so many numbers in lists. What passes takes at most 12
/// bytes of memory for each number of 32 bits (our requests have no others), lists that grow included, some hundred for
/// each field, and its texts.
/// Reads as far as the limits. Thread-safety: safe. Errors: INVALID_ARGUMENT: too many, or bytes that are no message.
absl::Status CheckFieldCount(const grpc::ByteBuffer& bytes, const google::protobuf::Descriptor& type,
                             const FieldLimits& limits = {});

}  // namespace swiftcache
