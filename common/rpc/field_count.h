// SPDX-License-Identifier: Apache-2.0
// Counts the fields of a message on the wire, before it is parsed: an empty message or text of two bytes becomes an
// object of some fifty, and so does a field that the parser does not know.
//
//   RETURN_IF_ERROR(CheckFieldCount(bytes, *v1::GenerateRequest::descriptor(), kMaxFields));
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"

namespace swiftcache {

/// Above the some 96,500 of the largest request that a gateway takes: 4,096 messages of a chat, with three each, and four
/// for each of the 21,024 different names of template variables that 64 KiB hold. Parsed, so many take at most 15 MB.
inline constexpr int64_t kMaxFields = 1 << 17;
inline constexpr char kCannotBeParsed[] =
    "the request cannot be parsed: wanted the method's message, with text in UTF-8";

/// Whether `bytes`, a message of `type`, have at most `max_fields` fields at all depths together, each element of a list
/// and each field that `type` does not have counted. Numbers in lists are not: they take at most 12 bytes of memory for
/// one on the wire, lists that grow included. What passes takes at most that, and some hundred bytes for each field.
/// Reads as far as `max_fields`. Thread-safety: safe. Errors: INVALID_ARGUMENT: too many, or bytes that are no message.
absl::Status CheckFieldCount(const grpc::ByteBuffer& bytes, const google::protobuf::Descriptor& type,
                             int64_t max_fields);

}  // namespace swiftcache
