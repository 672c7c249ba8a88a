// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/gguf_metadata.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "engine/loader/errors.h"

namespace swiftcache::engine::loader {
namespace {

constexpr int kMaxNesting = 8;
constexpr int64_t kMinPairBytes = 8 + 4 + 1;  // key length, type, the smallest value

// Bytes of a scalar; nothing for strings, arrays and types that do not exist.
std::optional<int64_t> ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    default:
      return std::nullopt;
  }
}

std::string NameOf(GgufType type) {
  static constexpr const char* kNames[] = {"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                           "bool",  "string", "array",  "uint64", "int64",  "float64"};
  const auto index = static_cast<uint32_t>(type);
  return index < std::size(kNames) ? kNames[index] : absl::StrCat("type ", index);
}

absl::Status UnknownType(const ByteReader& reader, GgufType type) {
  return Malformed(reader.file(), "offset ", reader.offset() - 4, ": metadata value type ", static_cast<uint32_t>(type),
                   ", want 0 to 12");
}

absl::Status SkipElements(ByteReader& reader, GgufType type, uint64_t count, int depth);

absl::Status SkipArray(ByteReader& reader, int depth) {
  if (depth >= kMaxNesting) {
    return Malformed(reader.file(), "offset ", reader.offset(), ": arrays nested deeper than ", kMaxNesting);
  }
  ASSIGN_OR_RETURN(const uint32_t element, reader.Read<uint32_t>("array element type"));
  ASSIGN_OR_RETURN(const uint64_t count, reader.Read<uint64_t>("array length"));
  return SkipElements(reader, static_cast<GgufType>(element), count, depth + 1);
}

absl::Status SkipElements(ByteReader& reader, GgufType type, uint64_t count, int depth) {
  if (const std::optional<int64_t> size = ScalarBytes(type)) {
    if (count > static_cast<uint64_t>(reader.remaining() / *size)) {
      return Malformed(reader.file(), "offset ", reader.offset(), ": an array of ", count, " ", NameOf(type),
                       ", found ", reader.remaining(), " bytes to the end of the file");
    }
    return reader.ReadBytes(count * static_cast<uint64_t>(*size), "array").status();
  }
  if (type != GgufType::kString && type != GgufType::kArray) return UnknownType(reader, type);
  for (uint64_t i = 0; i < count; ++i) {  // ends at the end of the file at the latest: every element takes bytes
    if (type == GgufType::kArray) {
      RETURN_IF_ERROR(SkipArray(reader, depth));
    } else {
      RETURN_IF_ERROR(reader.ReadString("array element").status());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufValue> ReadArray(ByteReader& reader) {
  GgufValue value;
  value.type = GgufType::kArray;
  value.offset = reader.offset();
  ASSIGN_OR_RETURN(const uint32_t element, reader.Read<uint32_t>("array element type"));
  ASSIGN_OR_RETURN(const uint64_t count, reader.Read<uint64_t>("array length"));
  value.element = static_cast<GgufType>(element);
  const ByteReader start = reader;
  RETURN_IF_ERROR(SkipElements(reader, value.element, count, 1));
  value.count = static_cast<int64_t>(count);
  const auto size = static_cast<uint64_t>(reader.offset() - start.offset());
  ByteReader again = start;
  ASSIGN_OR_RETURN(value.bytes, again.ReadBytes(size, "array"));
  return value;
}

absl::StatusOr<GgufValue> ReadValue(ByteReader& reader) {
  ASSIGN_OR_RETURN(const uint32_t raw_type, reader.Read<uint32_t>("metadata value type"));
  GgufValue value;
  value.type = static_cast<GgufType>(raw_type);
  value.offset = reader.offset();
  if (value.type == GgufType::kArray) return ReadArray(reader);
  if (value.type == GgufType::kString) {
    ASSIGN_OR_RETURN(const std::string_view text, reader.ReadString("metadata string"));
    value.bytes = std::as_bytes(std::span(text));
    return value;
  }
  const std::optional<int64_t> size = ScalarBytes(value.type);
  if (!size) return UnknownType(reader, value.type);
  ASSIGN_OR_RETURN(value.bytes, reader.ReadBytes(static_cast<uint64_t>(*size), "metadata value"));
  return value;
}

template <typename T>
T Load(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// The value of an integer scalar that fits int64_t.
std::optional<int64_t> IntegerOf(GgufType type, std::span<const std::byte> bytes) {
  switch (type) {
    case GgufType::kUint8:
      return Load<uint8_t>(bytes);
    case GgufType::kInt8:
      return Load<int8_t>(bytes);
    case GgufType::kUint16:
      return Load<uint16_t>(bytes);
    case GgufType::kInt16:
      return Load<int16_t>(bytes);
    case GgufType::kUint32:
      return Load<uint32_t>(bytes);
    case GgufType::kInt32:
      return Load<int32_t>(bytes);
    case GgufType::kInt64:
      return Load<int64_t>(bytes);
    case GgufType::kUint64: {
      const auto value = Load<uint64_t>(bytes);
      if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

absl::StatusOr<GgufMetadata> GgufMetadata::Parse(ByteReader& reader, uint64_t count) {
  if (count > static_cast<uint64_t>(reader.remaining() / kMinPairBytes)) {
    return Malformed(reader.file(), "metadata count ", count, ", found ", reader.remaining(),
                     " bytes to the end of the file");
  }
  GgufMetadata metadata(reader.file());
  for (uint64_t i = 0; i < count; ++i) {
    const int64_t offset = reader.offset();
    ASSIGN_OR_RETURN(const std::string_view key, reader.ReadString("metadata key"));
    if (!IsValidUtf8(key)) return Malformed(reader.file(), "offset ", offset, ": key ", Quoted(key), " is not UTF-8");
    ASSIGN_OR_RETURN(const GgufValue value, ReadValue(reader));
    if (!metadata.values_.emplace(std::string(key), value).second) {
      return Malformed(reader.file(), "offset ", offset, ": key ", Quoted(key), " is there twice, want it once");
    }
  }
  return metadata;
}

const GgufValue* GgufMetadata::Find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

absl::Status GgufMetadata::WrongType(const std::string& key, const GgufValue& value, const char* wanted) const {
  std::string found = NameOf(value.type);
  if (value.type == GgufType::kArray) absl::StrAppend(&found, " of ", value.count, " ", NameOf(value.element));
  return Malformed(file_, "key ", key, " (offset ", value.offset, "): found ", found, ", want ", wanted);
}

absl::StatusOr<int64_t> GgufMetadata::ToInt(const std::string& key, const GgufValue& value, int64_t min,
                                            int64_t max) const {
  const std::optional<int64_t> number = IntegerOf(value.type, value.bytes);
  if (!number && value.type != GgufType::kUint64) return WrongType(key, value, "an integer");
  if (!number || *number < min || *number > max) {
    const std::string found = number ? absl::StrCat(*number) : absl::StrCat(Load<uint64_t>(value.bytes));
    return Malformed(file_, "key ", key, " (offset ", value.offset, "): found ", found, ", want ", min, " to ", max);
  }
  return *number;
}

absl::StatusOr<std::optional<int64_t>> GgufMetadata::Int(const std::string& key, int64_t min, int64_t max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<int64_t>();
  ASSIGN_OR_RETURN(const int64_t number, ToInt(key, *value, min, max));
  return std::optional<int64_t>(number);
}

absl::StatusOr<int64_t> GgufMetadata::RequireInt(const std::string& key, int64_t min, int64_t max) const {
  ASSIGN_OR_RETURN(const std::optional<int64_t> number, UniformInt(key, min, max));
  if (!number) return Malformed(file_, "key ", key, " is missing, want an integer");
  return *number;
}

absl::StatusOr<std::optional<int64_t>> GgufMetadata::UniformInt(const std::string& key, int64_t min,
                                                                int64_t max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr || value->type != GgufType::kArray) return Int(key, min, max);
  const std::optional<int64_t> size = ScalarBytes(value->element);
  if (!size || value->count == 0) return WrongType(key, *value, "an integer");
  std::optional<int64_t> uniform;
  for (int64_t i = 0; i < value->count; ++i) {
    GgufValue element = *value;
    element.type = value->element;
    element.bytes = value->bytes.subspan(i * *size, *size);
    ASSIGN_OR_RETURN(const int64_t number, ToInt(key, element, min, max));
    if (uniform.value_or(number) != number) {
      return Unsupported(file_, "key ", key, ": layers of unlike sizes (", *uniform, " and ", number, ")");
    }
    uniform = number;
  }
  return uniform;
}

absl::StatusOr<std::optional<double>> GgufMetadata::Float(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  double number = 0;
  if (value->type == GgufType::kFloat32) {
    number = static_cast<double>(Load<float>(value->bytes));
  } else if (value->type == GgufType::kFloat64) {
    number = Load<double>(value->bytes);
  } else {
    return WrongType(key, *value, "a float");
  }
  if (!std::isfinite(number)) {
    return Malformed(file_, "key ", key, " (offset ", value->offset, "): found ", number, ", want a finite number");
  }
  return std::optional<double>(number);
}

absl::StatusOr<std::optional<bool>> GgufMetadata::Bool(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->type != GgufType::kBool) return WrongType(key, *value, "a bool");
  return std::optional<bool>(Load<uint8_t>(value->bytes) != 0);
}

absl::StatusOr<std::optional<std::string_view>> GgufMetadata::String(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->type != GgufType::kString) return WrongType(key, *value, "a string");
  return std::optional<std::string_view>(
      std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size()));
}

absl::StatusOr<std::optional<std::vector<std::string_view>>> GgufMetadata::Strings(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::vector<std::string_view>>();
  if (value->type != GgufType::kArray || value->element != GgufType::kString) {
    return WrongType(key, *value, "an array of strings");
  }
  std::vector<std::string_view> strings;
  strings.reserve(static_cast<size_t>(value->count));  // count strings were walked over when the file was parsed
  ByteReader reader(value->bytes, file_);
  for (int64_t i = 0; i < value->count; ++i) {
    ASSIGN_OR_RETURN(const std::string_view text, reader.ReadString("array element"));
    strings.push_back(text);
  }
  return std::optional(std::move(strings));
}

absl::StatusOr<std::optional<std::vector<float>>> GgufMetadata::Floats(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::vector<float>>();
  if (value->type != GgufType::kArray || value->element != GgufType::kFloat32) {
    return WrongType(key, *value, "an array of float32");
  }
  std::vector<float> numbers(static_cast<size_t>(value->count));
  if (!numbers.empty()) std::memcpy(numbers.data(), value->bytes.data(), value->bytes.size());
  return std::optional(std::move(numbers));
}

absl::StatusOr<std::optional<std::vector<int32_t>>> GgufMetadata::Ints(const std::string& key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::vector<int32_t>>();
  if (value->type != GgufType::kArray || (value->element != GgufType::kInt32 && value->element != GgufType::kUint32)) {
    return WrongType(key, *value, "an array of int32");
  }
  std::vector<int32_t> numbers(static_cast<size_t>(value->count));
  if (!numbers.empty()) std::memcpy(numbers.data(), value->bytes.data(), value->bytes.size());
  return std::optional(std::move(numbers));
}

}  // namespace swiftcache::engine::loader
