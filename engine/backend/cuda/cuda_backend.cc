// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/cuda/cuda_backend.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "engine/backend/check_shapes.h"
#include "engine/backend/cuda/attention_products_body.h"
#include "engine/backend/cuda/cuda_address.h"
#include "engine/backend/cuda/event_fence.h"

namespace swiftcache::engine::backend::cuda {
namespace {

constexpr int64_t kVectorAlignment = 256;
constexpr int64_t kMostRowsOfAGraph = 256;
constexpr size_t kLeastBlocks = 256;  // of a step's table

// Fills up with what means nothing, to a power of two that is not less than `least`.
template <class T>
void RoundUp(std::vector<T>& values, size_t least) {
  values.resize(values.empty() ? least : std::max(least, std::bit_ceil(values.size())));
}

absl::Status Check(const BackendOptions& o) {
  if (o.kv.dtype == KvDtype::kInt8) {
    return absl::InvalidArgumentError(
        "--kv_cache_dtype is int8; a GPU holds KV in bf16 or f32: use one of these, or --backend=cpu");
  }
  return CheckShapes(o.attention, o.kv, o.inverse_frequencies.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CudaBackend::Create(const BackendOptions& options, Driver& driver,
                                                             Kernels& kernels, Stream stream, bool graphs) {
  RETURN_IF_ERROR(Check(options));
  auto backend = std::unique_ptr<CudaBackend>(new CudaBackend(options, driver, kernels, stream, graphs));
  RETURN_IF_ERROR(backend->Reserve());
  return std::unique_ptr<Backend>(std::move(backend));
}

CudaBackend::CudaBackend(const BackendOptions& options, Driver& driver, Kernels& kernels, Stream stream, bool graphs)
    : options_(options),
      driver_(driver),
      stream_(stream),
      number_(options.precision == Precision::kF32 ? Number::kF32 : Number::kBf16),
      fences_(driver, stream),
      queue_(driver, kernels, stream, graphs),
      uploader_(driver, kernels, stream),
      steps_{StepState(driver), StepState(driver)} {
  weights_.packed = PrecisionName();
}

// Nothing frees memory that the device still works on.
CudaBackend::~CudaBackend() { driver_.Finish(stream_); }

absl::Status CudaBackend::Reserve() {
  const int64_t block_bytes = BlockBytes(plan_options().rows_per_tile, 1);
  if (block_bytes > driver_.info().block_memory_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        group(), " query heads of ", options_.attention.head_dim, " that share a KV head want ", block_bytes,
        " bytes of a block's memory, and this GPU has ", driver_.info().block_memory_bytes, ": use --backend=cpu"));
  }
  for (StepState& state : steps_) RETURN_IF_ERROR(state.uploads.Reserve());
  const int64_t dim = options_.attention.head_dim, f32 = sizeof(float);
  ASSIGN_OR_RETURN(rotations_, DeviceBytes::Allocate(driver_, options_.max_rows * dim * f32));
  const AttentionPlanOptions plan = plan_options();
  const int64_t queries = plan.rows_per_tile * group();
  ASSIGN_OR_RETURN(partial_,
                   DeviceBytes::Allocate(driver_, MostParts(plan) * plan.num_kv_heads * queries * (dim + 2) * f32));
  ASSIGN_OR_RETURN(inverse_frequencies_, DeviceBytes::Allocate(driver_, dim / 2 * f32));
  const WeightSource source = {.format = WeightFormat::kF32,
                               .data = reinterpret_cast<const std::byte*>(options_.inverse_frequencies.data()),
                               .rows = 1,
                               .cols = dim / 2,
                               .row_bytes = dim / 2 * f32};
  return uploader_.Upload(source, PackedAt(WeightFormat::kF32, inverse_frequencies_.address(), 1, dim / 2));
}

std::string CudaBackend::name() const {
  const DeviceInfo& info = driver_.info();
  return absl::StrCat("cuda/sm_", info.compute_major, info.compute_minor, "/", PrecisionName());
}

bool CudaBackend::attends_by_products() const {
  return kv_number() == Number::kBf16 && HasProducts(group(), options_.attention.head_dim);
}

int64_t CudaBackend::BlockBytes(int64_t rows, int64_t kv_buffers) const {
  const int64_t dim = options_.attention.head_dim;
  return attends_by_products() ? ProductBytes(rows * group(), dim, kv_buffers)
                               : TileFloats(rows * group(), dim) * int64_t{sizeof(float)};
}

int64_t CudaBackend::KvBuffers(int64_t rows) const {
  if (!attends_by_products()) return 1;
  return BuffersOfProducts(rows * group(), options_.attention.head_dim, driver_.info().block_memory_bytes);
}

// Of tiles of one row, which wait for K and V above all, as registers and memory allow; two at least, of which one begins
// where another ends.
int64_t CudaBackend::BlocksAtOnce() const {
  constexpr int64_t kLeast = 2;
  if (!attends_by_products()) return kLeast;
  const int64_t bytes = BlockBytes(1, KvBuffers(1)) + kMemoryOfEachBlock,
                have = driver_.info().block_memory_bytes + kMemoryOfEachBlock;
  return std::clamp<int64_t>(have / bytes, kLeast, BlocksOfProducts(options_.attention.head_dim, StripOf(group())));
}

AttentionPlanOptions CudaBackend::plan_options() const {
  const AttentionShape& shape = options_.attention;
  return {.rows_per_tile = attends_by_products() ? RowsPerProductTile(group(), shape.head_dim)
                                                 : RowsPerTile(group(), shape.head_dim),
          .num_kv_heads = shape.num_kv_heads,
          .blocks = BlocksAtOnce() * driver_.info().multiprocessors};
}

KvShape CudaBackend::kv_shape() const {
  return {.num_kv_heads = options_.kv.num_kv_heads,
          .head_dim = options_.kv.head_dim,
          .block_tokens = options_.kv.block_tokens};
}

// --- memory

absl::StatusOr<std::unique_ptr<Buffer>> CudaBackend::UploadVector(std::span<const WeightSource> parts) {
  int64_t cols = 0;
  for (const WeightSource& part : parts) cols += part.cols;
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer, PlaceVector(cols));
  uint64_t out = buffer->address();
  for (const WeightSource& part : parts) {
    CHECK_EQ(part.rows, 1);
    RETURN_IF_ERROR(uploader_.Upload(part, PackedAt(WeightFormat::kF32, out, 1, part.cols)));
    out += static_cast<uint64_t>(part.cols) * sizeof(float);
  }
  return std::unique_ptr<Buffer>(std::move(buffer));
}

// A GPU's memory comes by 2 MiB, and a model has hundreds of vectors of some KiB: they share it.
absl::StatusOr<std::unique_ptr<DeviceBuffer>> CudaBackend::PlaceVector(int64_t cols) {
  const int64_t bytes = CeilDiv(cols * int64_t{sizeof(float)}, kVectorAlignment) * kVectorAlignment;
  if (vectors_ == nullptr || vectors_->bytes() - vectors_used_ < bytes) {
    ASSIGN_OR_RETURN(DeviceBytes memory, DeviceBytes::Allocate(driver_, bytes, stream_));
    vectors_ = std::make_shared<const DeviceBytes>(std::move(memory));
    vectors_used_ = 0;
  }
  const uint64_t address = vectors_->address() + static_cast<uint64_t>(vectors_used_);
  vectors_used_ += bytes;
  return std::make_unique<DeviceBuffer>(vectors_, address, 1, cols, Number::kF32);
}

absl::StatusOr<std::unique_ptr<Buffer>> CudaBackend::AllocateOf(Number number, int64_t rows, int64_t cols) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer, DeviceBuffer::Allocate(driver_, rows, cols, number, stream_));
  RETURN_IF_ERROR(driver_.Zero(stream_, buffer->address(), buffer->bytes()));
  return std::unique_ptr<Buffer>(std::move(buffer));
}

absl::StatusOr<std::span<const float>> CudaBackend::Download(Buffer& buffer, int64_t rows) {
  const DeviceBuffer& from = AsDevice(buffer);
  CHECK_LE(rows, from.rows());
  CHECK(from.number() == Number::kF32) << "what AllocateRounded gave is not downloaded";
  const int64_t bytes = rows * from.cols() * int64_t{sizeof(float)};
  RETURN_IF_ERROR(EnsurePinned(download_, bytes));
  if (bytes == 0) return std::span<const float>();
  const DeviceCopy copy = {.to = reinterpret_cast<uint64_t>(download_.data()), .from = from.address(), .bytes = bytes};
  RETURN_IF_ERROR(queue_.Flush());
  RETURN_IF_ERROR(driver_.Copy(stream_, {&copy, 1}));
  absl::Status status;
  fences_.Record([&status](const absl::Status& why) { status = why; }).Wait();
  RETURN_IF_ERROR(status);
  return std::span<const float>(download_.as<float>(), rows * from.cols());
}

// Of what a step submits later on.
void CudaBackend::Flush() {
  const absl::Status status = queue_.Flush();
  if (order_.ok()) order_ = status;
}

void CudaBackend::Finish() {
  Flush();
  driver_.Finish(stream_);
}

// Memory that grows is new memory: what the device still does with the old one comes first.
absl::Status CudaBackend::EnsurePinned(PinnedBytes& memory, int64_t bytes) {
  if (memory.bytes() >= bytes && memory.data() != nullptr) return absl::OkStatus();
  Finish();
  ASSIGN_OR_RETURN(memory, PinnedBytes::Allocate(driver_, bytes));
  return absl::OkStatus();
}

absl::Status CudaBackend::EnsureDevice(DeviceBytes& memory, int64_t bytes) {
  if (memory.bytes() >= bytes && memory.address() != 0) return absl::OkStatus();
  Finish();
  ASSIGN_OR_RETURN(memory, DeviceBytes::Allocate(driver_, bytes));
  return absl::OkStatus();
}

// --- a step

// A step of decoding comes again with other numbers in the same places, so that what varies in size is rounded up there:
// the graphs of KernelQueue serve it until a size passes a power of two.
absl::Status CudaBackend::BeginStep(std::span<const StepSequence> sequences, std::span<const StreamedBlock> streamed) {
  Flush();  // of a step that nobody ended
  step_ = 1 - step_;
  step().done.Wait();
  if (!step().done.Passed()) driver_.Finish(stream_);  // of a step that failed, and may go on all the same
  step().uploads.Begin();
  sampled_ = false;
  const bool decodes = std::all_of(sequences.begin(), sequences.end(), [](const auto& s) { return s.num_rows == 1; }) &&
                       static_cast<int64_t>(sequences.size()) <= kMostRowsOfAGraph;
  queue_.BeginStep(step_, decodes);
  RETURN_IF_ERROR(PutRows(sequences));
  plan_ = PlanAttention(sequences, plan_options());
  if (decodes) {
    RoundUp(plan_.tiles, 1);
    RoundUp(plan_.divided, 0);
  }
  ASSIGN_OR_RETURN(tiles_, step().uploads.Put(std::span<const AttentionTile>(plan_.tiles)));
  ASSIGN_OR_RETURN(divided_, step().uploads.Put(std::span<const DividedTile>(plan_.divided)));
  RETURN_IF_ERROR(PutBlocks(sequences, streamed));
  RETURN_IF_ERROR(step().uploads.Send(stream_));
  if (rows_ == 0) return absl::OkStatus();
  return queue_.Add(RotationsOp{.inverse_frequencies = inverse_frequencies_.as<float>(),
                                .half = options_.attention.head_dim / 2,
                                .positions = tables_.position,
                                .rows = rows_,
                                .rotations = rotations_.as<float>()});
}

absl::Status CudaBackend::PutRows(std::span<const StepSequence> sequences) {
  std::vector<int32_t> sequence, position;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t r = 0; r < sequences[s].num_rows; ++r) {
      sequence.push_back(static_cast<int32_t>(s));
      position.push_back(static_cast<int32_t>(sequences[s].context_tokens + r));
    }
  }
  rows_ = static_cast<int64_t>(position.size());
  CHECK_LE(rows_, options_.max_rows);
  ASSIGN_OR_RETURN(tables_.sequence, step().uploads.Put(std::span<const int32_t>(sequence)));
  ASSIGN_OR_RETURN(tables_.position, step().uploads.Put(std::span<const int32_t>(position)));
  return absl::OkStatus();
}

absl::Status CudaBackend::PutBlocks(std::span<const StepSequence> sequences, std::span<const StreamedBlock> streamed) {
  std::vector<KvBlock> blocks;
  std::vector<int32_t> first_block;
  for (const StepSequence& s : sequences) {
    CHECK_GE(static_cast<int64_t>(s.blocks.size()) * options_.kv.block_tokens, s.context_tokens + s.num_rows);
    first_block.push_back(static_cast<int32_t>(blocks.size()));
    for (const DeviceAddress block : s.blocks) {
      const uint64_t slice = ToNumber(block);
      blocks.push_back({.slices = {slice, slice}, .layer_stride = options_.kv.slice_bytes()});
    }
  }
  for (const StreamedBlock& s : streamed) {
    blocks.at(s.block) = {.slices = {ToNumber(s.slots[0]), ToNumber(s.slots[1])}};
  }
  RoundUp(blocks, kLeastBlocks);
  ASSIGN_OR_RETURN(tables_.first_block, step().uploads.Put(std::span<const int32_t>(first_block)));
  tables_.num_blocks = static_cast<int64_t>(blocks.size());
  ASSIGN_OR_RETURN(tables_.blocks, step().uploads.Put(std::span<const KvBlock>(blocks)));
  return absl::OkStatus();
}

absl::Status CudaBackend::RopeAndStoreKv(const RopeOp& op) {
  if (rows_ == 0) return absl::OkStatus();
  const RopeStep step = {.tables = tables_,
                         .kv = kv_shape(),
                         .num_heads = options_.attention.num_heads,
                         .layer = op.layer,
                         .eps = op.eps,
                         .qkv = AsDevice(*op.qkv).data(),
                         .q_norm = DataOrNull(op.q_norm),
                         .k_norm = DataOrNull(op.k_norm),
                         .rotations = rotations_.as<float>()};
  return queue_.Add(RotateOp{.step = step, .rows = rows_, .number = kv_number()});
}

absl::Status CudaBackend::Attention(int64_t layer, const Buffer& qkv, Buffer& out) {
  if (rows_ == 0) return absl::OkStatus();
  const AttentionShape& shape = options_.attention;
  const AttentionStep attention = {.tables = tables_,
                                   .kv = kv_shape(),
                                   .num_heads = shape.num_heads,
                                   .rows_per_tile = plan_options().rows_per_tile,
                                   .rows_in_memory = plan_.most_rows,
                                   .kv_buffers = KvBuffers(plan_.most_rows),
                                   .layer = layer,
                                   .qkv = AsDevice(qkv).data(),
                                   .out = AsDevice(out).numbers(),
                                   .out_number = AsDevice(out).number(),
                                   .partial = partial_.as<float>()};
  return queue_.Add(AttendOp{.step = attention,
                             .tiles = tiles_,
                             .num_tiles = static_cast<int64_t>(plan_.tiles.size()),
                             .divided = divided_,
                             .num_divided = static_cast<int64_t>(plan_.divided.size()),
                             .most_parts = MostParts(plan_options()),
                             .memory_bytes = BlockBytes(plan_.most_rows, KvBuffers(plan_.most_rows)),
                             .products = attends_by_products(),
                             .strip_rows = StripOf(plan_.most_rows * group()),
                             .number = kv_number()});
}

// A fence of work that failed does not pass: the step that needs it is not computed.
void CudaBackend::WaitFor(const Fence& fence) {
  if (fence.Passed()) return;
  // What was kept back may be given behind a wait of the stream: the fence does not depend on it, since whoever wants to
  // know of work asks Submitted, which gives it. The host's own wait would keep it from the device.
  if (!IsOrderable(driver_, fence)) Flush();
  const absl::Status status = OrderBehind(driver_, stream_, fence);
  if (order_.ok()) order_ = status;
}

Fence CudaBackend::Submitted() {
  Flush();
  return fences_.Record();
}

Fence CudaBackend::EndStep(absl::Status& status) {
  Flush();
  queue_.EndStep();
  if (status.ok()) status = std::exchange(order_, absl::OkStatus());
  step().done = fences_.Record([&status](const absl::Status& why) {
    if (status.ok()) status = why;
  });
  return step().done;
}

// Compared by the host, behind the fence that says that every read of the step is done. That is sound: the owner changes
// the word before it submits what writes the memory, on any stream or copy engine (transport.h: Fence). A read that saw a new byte came after
// that write, so the change of the word came before it; the host looks at the word after the read, and sees the change.
// No kernel need read foreign pages of the host, which would have to be registered, and unregistered in time.
absl::Status CudaBackend::CheckWords(std::span<const WordCheck> checks, std::vector<int32_t>& changed) {
  if (checks.empty()) return absl::OkStatus();
  fences_.WhenDone([checks, &changed] {
    for (size_t i = 0; i < checks.size(); ++i) {
      if (!checks[i].Holds()) changed.push_back(static_cast<int32_t>(i));
    }
  });
  return absl::OkStatus();
}

}  // namespace swiftcache::engine::backend::cuda
