// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/gguf_file.h"

#include <bit>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "common/base/utf8.h"
#include "engine/loader/errors.h"
#include "engine/loader/tensor_overlap.h"

namespace swiftcache::engine::loader {

using backend::WeightFormat;

namespace {

constexpr int64_t kMinInfoBytes = 8 + 4 + 8 + 4 + 8;  // name length, dims count, one dim, type, offset
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kMaxAlignment = 65536;

struct TensorInfo {
  std::string name;
  WeightFormat format = WeightFormat::kF32;
  std::vector<int64_t> dims;
  uint64_t offset = 0;      // in the data section
  int64_t info_offset = 0;  // in the file, for messages
};

// GGML's numbers.
std::optional<WeightFormat> FormatOf(uint32_t number) {
  switch (number) {
    case 0:
      return WeightFormat::kF32;
    case 1:
      return WeightFormat::kF16;
    case 2:
      return WeightFormat::kQ4_0;
    case 3:
      return WeightFormat::kQ4_1;
    case 6:
      return WeightFormat::kQ5_0;
    case 7:
      return WeightFormat::kQ5_1;
    case 8:
      return WeightFormat::kQ8_0;
    case 12:
      return WeightFormat::kQ4_K;
    case 13:
      return WeightFormat::kQ5_K;
    case 14:
      return WeightFormat::kQ6_K;
    case 30:
      return WeightFormat::kBf16;
    default:
      return std::nullopt;
  }
}

absl::Status CheckVersion(const std::string& file, uint32_t version) {
  if (version == 2 || version == 3) return absl::OkStatus();
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= 3) {
    return Unsupported(file, "offset 4: a big-endian GGUF file (version reads as ", version, "), want little-endian");
  }
  return Unsupported(file, "offset 4: GGUF version ", version, ", want 2 or 3");
}

absl::StatusOr<std::vector<int64_t>> ReadDims(ByteReader& reader, const std::string& name) {
  ASSIGN_OR_RETURN(const uint32_t count, reader.Read<uint32_t>("number of dimensions"));
  if (count < 1 || count > kMaxDims) {
    return Malformed(reader.file(), "offset ", reader.offset() - 4, ": tensor ", Quoted(name), " has ", count,
                     " dimensions, want 1 to ", kMaxDims);
  }
  std::vector<int64_t> dims;
  for (uint32_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const uint64_t dim, reader.Read<uint64_t>("dimension"));
    if (dim < 1 || dim > static_cast<uint64_t>(INT64_MAX)) {
      return Malformed(reader.file(), "offset ", reader.offset() - 8, ": tensor ", Quoted(name), " has a dimension of ",
                       dim, ", want 1 to 2^63-1");
    }
    dims.push_back(static_cast<int64_t>(dim));
  }
  return dims;
}

absl::StatusOr<TensorInfo> ReadInfo(ByteReader& reader) {
  TensorInfo info;
  info.info_offset = reader.offset();
  ASSIGN_OR_RETURN(const std::string_view name, reader.ReadString("tensor name"));
  if (!IsValidUtf8(name)) {
    return Malformed(reader.file(), "offset ", info.info_offset, ": tensor name ", Quoted(name), " is not UTF-8");
  }
  info.name = std::string(name);
  ASSIGN_OR_RETURN(info.dims, ReadDims(reader, info.name));
  ASSIGN_OR_RETURN(const uint32_t number, reader.Read<uint32_t>("tensor type"));
  const std::optional<WeightFormat> format = FormatOf(number);
  if (!format) {
    return Unsupported(reader.file(), "offset ", reader.offset() - 4, ": tensor ", Quoted(info.name),
                       " has GGML type number ", number,
                       ", want F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q5_K or Q6_K");
  }
  info.format = *format;
  ASSIGN_OR_RETURN(info.offset, reader.Read<uint64_t>("tensor offset"));
  return info;
}

// Bytes of the tensor's data, checked against overflow and against its type's block.
absl::StatusOr<int64_t> DataBytes(const std::string& file, const TensorInfo& info) {
  const backend::WeightBlock& block = BlockOf(info.format);
  if (info.dims[0] % block.elements != 0) {
    return Malformed(file, "offset ", info.info_offset, ": tensor ", Quoted(info.name), " of type ",
                     NameOf(info.format), " has rows of ", info.dims[0], ", want a multiple of ", block.elements);
  }
  std::optional<int64_t> bytes = CheckedMul(info.dims[0] / block.elements, block.bytes);
  for (size_t i = 1; i < info.dims.size() && bytes; ++i) bytes = CheckedMul(*bytes, info.dims[i]);
  if (!bytes) {
    return Malformed(file, "offset ", info.info_offset, ": tensor ", Quoted(info.name),
                     ": its dimensions multiplied leave 63 bits");
  }
  return *bytes;
}

absl::StatusOr<GgufTensor> Place(const std::string& file, const TensorInfo& info, int64_t alignment,
                                 std::span<const std::byte> data) {
  ASSIGN_OR_RETURN(const int64_t size, DataBytes(file, info));
  if (info.offset % static_cast<uint64_t>(alignment) != 0) {
    return Malformed(file, "offset ", info.info_offset, ": tensor ", Quoted(info.name), " lies at data offset ",
                     info.offset, ", want a multiple of the alignment ", alignment);
  }
  if (info.offset > data.size() || static_cast<uint64_t>(size) > data.size() - info.offset) {
    return Malformed(file, "offset ", info.info_offset, ": tensor ", Quoted(info.name), " wants ", size,
                     " bytes at data offset ", info.offset, ", found a data section of ", data.size(), " bytes");
  }
  return GgufTensor{info.format, info.dims, data.subspan(info.offset, static_cast<size_t>(size))};
}

absl::StatusOr<int64_t> ReadAlignment(const GgufMetadata& metadata) {
  constexpr char kKey[] = "general.alignment";
  ASSIGN_OR_RETURN(const std::optional<int64_t> found, metadata.Int(kKey, 1, kMaxAlignment));
  const int64_t alignment = found.value_or(32);
  if (!std::has_single_bit(static_cast<uint64_t>(alignment))) {
    return Malformed(metadata.file(), "key ", kKey, ": found ", alignment, ", want a power of two");
  }
  return alignment;
}

absl::StatusOr<std::vector<TensorInfo>> ReadInfos(ByteReader& reader, uint64_t count) {
  if (count > static_cast<uint64_t>(reader.remaining() / kMinInfoBytes)) {
    return Malformed(reader.file(), "tensor count ", count, ", found ", reader.remaining(),
                     " bytes to the end of the file");
  }
  std::vector<TensorInfo> infos;
  for (uint64_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(TensorInfo info, ReadInfo(reader));
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace

absl::StatusOr<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, const std::string& file) {
  ByteReader reader(bytes, file);
  ASSIGN_OR_RETURN(const auto magic, reader.ReadBytes(4, "magic"));
  const std::string_view found(reinterpret_cast<const char*>(magic.data()), magic.size());
  if (found != "GGUF") {
    return Malformed(file, "offset 0: found magic ", Quoted(found),
                     ", want \"GGUF\" (a Hugging Face model is opened by its folder)");
  }
  ASSIGN_OR_RETURN(const uint32_t version, reader.Read<uint32_t>("version"));
  RETURN_IF_ERROR(CheckVersion(file, version));
  ASSIGN_OR_RETURN(const uint64_t tensor_count, reader.Read<uint64_t>("tensor count"));
  ASSIGN_OR_RETURN(const uint64_t pair_count, reader.Read<uint64_t>("metadata count"));
  ASSIGN_OR_RETURN(GgufMetadata metadata, GgufMetadata::Parse(reader, pair_count));
  GgufFile gguf(std::move(metadata));
  ASSIGN_OR_RETURN(const std::vector<TensorInfo> infos, ReadInfos(reader, tensor_count));
  ASSIGN_OR_RETURN(const int64_t alignment, ReadAlignment(gguf.metadata_));
  const int64_t data_offset = CeilDiv(reader.offset(), alignment) * alignment;
  const auto data =
      data_offset < static_cast<int64_t>(bytes.size()) ? bytes.subspan(data_offset) : std::span<const std::byte>();
  for (const TensorInfo& info : infos) {
    ASSIGN_OR_RETURN(GgufTensor tensor, Place(file, info, alignment, data));
    if (!gguf.tensors_.emplace(info.name, std::move(tensor)).second) {
      return Malformed(file, "offset ", info.info_offset, ": tensor ", Quoted(info.name), " is there twice");
    }
  }
  std::vector<TensorBytes> places;
  for (const auto& [name, tensor] : gguf.tensors_) places.push_back({name, tensor.data});
  RETURN_IF_ERROR(CheckNoOverlap(file, std::move(places)));
  return gguf;
}

}  // namespace swiftcache::engine::loader
