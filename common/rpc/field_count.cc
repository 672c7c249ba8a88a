// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/field_count.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;

absl::Status CannotBeParsed() { return absl::InvalidArgumentError(kCannotBeParsed); }

// With the wrong wire type it is a field that is not known.
bool IsListOfNumbers(const FieldDescriptor* field, WireFormatLite::WireType wire) {
  return field != nullptr && field->is_packable() &&
         (wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED || wire == WireFormat::WireTypeForFieldType(field->type()));
}

/// Reads a message as the parser does. It never goes beyond what holds it, which the parser finds out only afterwards.
class FieldCounter {
 public:
  FieldCounter(google::protobuf::io::CodedInputStream& in, const FieldLimits& limits) : in_(in), limits_(limits) {}

  // To the limit of `in`. `type` is null inside of what is not known.
  absl::Status Message(const Descriptor* type) {
    ASSIGN_OR_RETURN(const uint32_t last_tag, Fields(type));
    return last_tag == 0 && in_.ConsumedEntireMessage() ? absl::OkStatus() : CannotBeParsed();
  }

 private:
  // Up to a tag that begins no field, which it returns.
  absl::StatusOr<uint32_t> Fields(const Descriptor* type) {
    for (;;) {
      const uint32_t tag = in_.ReadTag();
      const WireFormatLite::WireType wire = WireFormatLite::GetTagWireType(tag);
      if (tag == 0 || wire == WireFormatLite::WIRETYPE_END_GROUP) return tag;
      const FieldDescriptor* field =
          type == nullptr ? nullptr : type->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      RETURN_IF_ERROR(IsListOfNumbers(field, wire) ? Numbers(field, tag) : Field(field, tag));
    }
  }

  absl::Status Field(const FieldDescriptor* field, uint32_t tag) {
    if (++fields_ > limits_.fields) {
      return TooMany("fields and elements of lists", field == nullptr ? "one that is not known" : field->full_name(),
                     limits_.fields);
    }
    switch (WireFormatLite::GetTagWireType(tag)) {
      case WireFormatLite::WIRETYPE_START_GROUP:
        return Group(tag);
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
        if (field != nullptr && field->message_type() != nullptr) return Nested(field->message_type());
        [[fallthrough]];
      default:
        return Skip(tag);
    }
  }

  absl::Status Numbers(const FieldDescriptor* field, uint32_t tag) {
    if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      RETURN_IF_ERROR(PackedNumbers(WireFormat::WireTypeForFieldType(field->type())));
    } else {
      ++numbers_;
      RETURN_IF_ERROR(Skip(tag));
    }
    if (numbers_ <= limits_.numbers) return absl::OkStatus();
    return TooMany("numbers in lists", field->full_name(), limits_.numbers);
  }

  // `wire`: of each number by itself.
  absl::Status PackedNumbers(WireFormatLite::WireType wire) {
    int left = 0;
    if (!in_.ReadVarintSizeAsInt(&left) || left > in_.BytesUntilLimit()) return CannotBeParsed();
    if (wire != WireFormatLite::WIRETYPE_VARINT) {
      numbers_ += left / (wire == WireFormatLite::WIRETYPE_FIXED32 ? 4 : 8);
      return in_.Skip(left) ? absl::OkStatus() : CannotBeParsed();
    }
    while (left > 0) {
      const void* data = nullptr;
      int size = 0;
      if (!in_.GetDirectBufferPointer(&data, &size)) return CannotBeParsed();
      size = std::min(size, left);
      const auto* begin = static_cast<const uint8_t*>(data);
      numbers_ += std::count_if(begin, begin + size, [](uint8_t byte) { return byte < 0x80; });  // ends a number
      in_.Skip(size);
      left -= size;
    }
    return absl::OkStatus();
  }

  static absl::Status TooMany(const char* what, const std::string& last, int64_t limit) {
    return absl::InvalidArgumentError(absl::StrCat("the message has more than ", limit, " ", what,
                                                   ", the last of them ", last, "; wants at most ", limit,
                                                   ": send fewer"));
  }

  absl::Status Skip(uint32_t tag) { return WireFormatLite::SkipField(&in_, tag) ? absl::OkStatus() : CannotBeParsed(); }

  absl::Status Nested(const Descriptor* type) {
    int length = 0;
    if (!in_.ReadVarintSizeAsInt(&length) || length > in_.BytesUntilLimit()) return CannotBeParsed();
    const auto [limit, depth_left] = in_.IncrementRecursionDepthAndPushLimit(length);
    if (depth_left < 0) return CannotBeParsed();
    RETURN_IF_ERROR(Message(type));
    in_.DecrementRecursionDepthAndPopLimit(limit);
    return absl::OkStatus();
  }

  // No message of ours has groups.
  absl::Status Group(uint32_t tag) {
    if (!in_.IncrementRecursionDepth()) return CannotBeParsed();
    ASSIGN_OR_RETURN(const uint32_t last_tag, Fields(nullptr));
    in_.DecrementRecursionDepth();
    return WireFormatLite::GetTagFieldNumber(last_tag) == WireFormatLite::GetTagFieldNumber(tag) ? absl::OkStatus()
                                                                                                 : CannotBeParsed();
  }

  google::protobuf::io::CodedInputStream& in_;
  const FieldLimits limits_;
  int64_t fields_ = 0, numbers_ = 0;
};

}  // namespace

absl::Status CheckFieldCount(const grpc::ByteBuffer& bytes, const Descriptor& type, const FieldLimits& limits) {
  grpc::ByteBuffer same = bytes;  // the reader wants one that it might change; the bytes are shared
  grpc::ProtoBufferReader reader(&same);
  if (!reader.status().ok()) return CannotBeParsed();
  google::protobuf::io::CodedInputStream in(&reader);
  in.PushLimit(static_cast<int>(bytes.Length()));
  return FieldCounter(in, limits).Message(&type);
}

}  // namespace swiftcache
