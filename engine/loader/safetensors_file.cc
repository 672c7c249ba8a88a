// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/safetensors_file.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/errors.h"
#include "engine/loader/json_document.h"
#include "engine/loader/tensor_overlap.h"

namespace swiftcache::engine::loader {

using backend::WeightFormat;

namespace {

constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct ElementType {
  const char* name;
  int64_t bytes;
  std::optional<WeightFormat> format;
};

constexpr ElementType kElementTypes[] = {
    {"F32", 4, WeightFormat::kF32}, {"F16", 2, WeightFormat::kF16}, {"BF16", 2, WeightFormat::kBf16},
    {"F64", 8, std::nullopt},       {"I64", 8, std::nullopt},       {"U64", 8, std::nullopt},
    {"I32", 4, std::nullopt},       {"U32", 4, std::nullopt},       {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},       {"I8", 1, std::nullopt},        {"U8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},      {"F8_E4M3", 1, std::nullopt},   {"F8_E5M2", 1, std::nullopt},
};

absl::StatusOr<ElementType> ReadDtype(const JsonObject& info) {
  ASSIGN_OR_RETURN(const std::string name, info.RequireString("dtype"));
  for (const ElementType& type : kElementTypes) {
    if (name == type.name) return type;
  }
  return info.Wrong("dtype", "F32, F16, BF16 or another of the format's types");
}

absl::StatusOr<std::vector<int64_t>> ReadInts(const JsonObject& info, const std::string& key) {
  ASSIGN_OR_RETURN(const nlohmann::json* array, info.RequireArray(key));
  std::vector<int64_t> numbers;
  for (const nlohmann::json& element : *array) {
    const std::optional<int64_t> number = ToInt(element, 0, INT64_MAX);
    if (!number) {
      return Malformed(info.file(), "key ", info.Path(key), ": found ", Describe(element),
                       ", want whole numbers from 0 to 2^63-1");
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<int64_t> SizeOf(const std::vector<int64_t>& shape, int64_t element_bytes) {
  std::optional<int64_t> size = element_bytes;
  for (const int64_t dim : shape) size = size ? CheckedMul(*size, dim) : size;
  return size;
}

absl::StatusOr<SafetensorsTensor> ReadTensor(const JsonObject& info, std::span<const std::byte> data) {
  ASSIGN_OR_RETURN(const ElementType element, ReadDtype(info));
  SafetensorsTensor tensor{.format = element.format, .dtype = element.name, .shape = {}, .data = {}};
  ASSIGN_OR_RETURN(tensor.shape, ReadInts(info, "shape"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, ReadInts(info, "data_offsets"));
  const auto end = static_cast<int64_t>(data.size());
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > end) {
    const std::string found = info.Find("data_offsets")->dump().substr(0, 100);
    return Malformed(info.file(), "key ", info.Path("data_offsets"), ": found ", found,
                     ", want [begin, end] with begin <= end <= ", end, " (the data in the file)");
  }
  const std::optional<int64_t> size = SizeOf(tensor.shape, element.bytes);
  if (!size || *size != offsets[1] - offsets[0]) {
    return Malformed(info.file(), "key ", info.Path("data_offsets"), ": found ", offsets[1] - offsets[0],
                     " bytes, want ", size ? absl::StrCat(*size) : "more than 2^63", " (shape times ", element.name,
                     ")");
  }
  tensor.data = data.subspan(offsets[0], offsets[1] - offsets[0]);
  return tensor;
}

}  // namespace

absl::StatusOr<std::map<std::string, SafetensorsTensor>> ParseSafetensors(std::span<const std::byte> bytes,
                                                                          const std::string& file) {
  ByteReader reader(bytes, file);
  ASSIGN_OR_RETURN(const uint64_t header_bytes, reader.Read<uint64_t>("header length"));
  if (header_bytes > static_cast<uint64_t>(std::min(reader.remaining(), kMaxHeaderBytes))) {
    return Malformed(file, "offset 0: header length ", header_bytes, ", want at most ",
                     std::min(reader.remaining(), kMaxHeaderBytes));
  }
  ASSIGN_OR_RETURN(const auto header, reader.ReadBytes(header_bytes, "header"));
  const auto data = bytes.subspan(reader.offset());
  ASSIGN_OR_RETURN(const nlohmann::json json,
                   ParseJson({reinterpret_cast<const char*>(header.data()), header.size()}, file + " (header)"));
  ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(json, file, ""));
  std::map<std::string, SafetensorsTensor> tensors;
  for (const auto& [name, value] : root.value().items()) {
    if (name == "__metadata__") continue;
    const std::string quoted = Quoted(name);
    ASSIGN_OR_RETURN(const JsonObject info, JsonObject::Of(value, file, quoted));
    ASSIGN_OR_RETURN(SafetensorsTensor tensor, ReadTensor(info, data));
    tensors.emplace(name, std::move(tensor));
  }
  std::vector<TensorBytes> places;
  for (const auto& [name, tensor] : tensors) places.push_back({name, tensor.data});
  RETURN_IF_ERROR(CheckNoOverlap(file, std::move(places)));
  return tensors;
}

}  // namespace swiftcache::engine::loader
