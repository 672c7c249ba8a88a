// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/nccl/nccl_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/transport/nccl/nccl_message.h"
#include "engine/transport/nccl/nccl_slice_stream.h"
#include "engine/transport/shm_address.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport::nccl {

absl::StatusOr<std::unique_ptr<NcclTransport>> NcclTransport::Create(const Options& options, NcclApi& nccl,
                                                                     backend::cuda::Driver& driver, const Clock& clock,
                                                                     TransportEvents& events) {
  if (static_cast<int64_t>(options.instance_id.size()) > kMaxWireText) {
    return absl::InvalidArgumentError(absl::StrCat("the engine's instance has ", options.instance_id.size(),
                                                   " bytes; at most ", kMaxWireText, " are allowed"));
  }
  ASSIGN_OR_RETURN(ShmListener listener, ShmListener::Create(options.shm_dir, options.name));
  std::unique_ptr<NcclTransport> transport(
      new NcclTransport(options, nccl, driver, clock, events, std::move(listener)));
  RETURN_IF_ERROR(transport->Start());
  return transport;
}

NcclTransport::NcclTransport(const Options& options, NcclApi& nccl, backend::cuda::Driver& driver, const Clock& clock,
                             TransportEvents& events, ShmListener listener)
    : nccl_version_(nccl.version()),
      listener_(std::move(listener)),
      donor_({.arena = options.arena, .arena_bytes = options.arena_bytes}, nccl, driver, clock, events),
      borrower_(options.instance_id, nccl, driver, clock, events) {}

absl::Status NcclTransport::Start() {
  const auto meet = [this](std::shared_ptr<ShmSocket> socket) { return donor_.Meet(std::move(socket)); };
  ASSIGN_OR_RETURN(loop_, ShmLoop::Create(listener_, meet));
  borrower_.Start(*loop_);
  return absl::OkStatus();
}

void NcclTransport::Stop() {
  if (loop_ != nullptr) loop_->Stop();
  borrower_.Stop();
  donor_.Stop();
}

std::string NcclTransport::protocol() const { return absl::StrCat(kind(), ".", kNcclVersion, ".", nccl_version_); }

void NcclTransport::Open(const OpenSpec& spec) {
  OpenSpec open = spec;
  open.channel = ShmPeerPath(channel(), spec.channel);
  borrower_.Open(open);
}

std::vector<Ticket> NcclTransport::Store(std::span<const StorePiece> pieces, const backend::Fence& after) {
  NcclMoves moves = {.kind = NcclKind::kStore, .after = after};
  std::vector<Ticket> tickets;
  for (const StorePiece& piece : pieces) {
    tickets.push_back(Ticket(next_ticket_++));
    moves.moves.push_back({.lease = piece.lease,
                           .offset_bytes = piece.offset_bytes,
                           .bytes = piece.bytes,
                           .here = {piece.from, piece.from},
                           .ticket = tickets.back()});
  }
  (void)borrower_.Begin(std::move(moves));
  return tickets;
}

Ticket NcclTransport::Load(std::vector<LoadPiece> pieces, const backend::Fence& after) {
  NcclMoves moves = {.kind = NcclKind::kLoad, .after = after};
  for (const LoadPiece& piece : pieces) {
    moves.moves.push_back(
        {.lease = piece.lease, .offset_bytes = piece.offset_bytes, .bytes = piece.bytes, .here = {piece.to, piece.to}});
  }
  NcclBegun begun = borrower_.Begin(std::move(moves));
  const Ticket ticket(next_ticket_++);
  absl::MutexLock lock(&mutex_);
  loads_[ticket] = std::move(begun);
  return ticket;
}

std::vector<kv::LeaseId> NcclTransport::Await(Ticket ticket) {
  NcclBegun begun;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = loads_.find(ticket);
    CHECK(it != loads_.end()) << "load " << ticket << " is unknown, or was awaited already";
    begun = std::move(it->second);
    loads_.erase(it);
  }
  return borrower_.AwaitLost(begun);
}

std::unique_ptr<SliceStream> NcclTransport::BeginStream(StreamSpec spec, const backend::Fence& after) {
  return std::make_unique<NcclSliceStream>(spec, after, borrower_);
}

TransportStats NcclTransport::stats() const {
  TransportStats stats;
  donor_.AddStats(stats);
  borrower_.AddStats(stats);
  return stats;
}

}  // namespace swiftcache::engine::transport::nccl
