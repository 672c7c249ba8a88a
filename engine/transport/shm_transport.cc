// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/shm_transport.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "engine/transport/shm_memory.h"
#include "engine/transport/shm_message.h"
#include "engine/transport/shm_slice_stream.h"
#include "glog/logging.h"

namespace swiftcache::engine::transport {
namespace {

ShmThrottle::Options Link(const ShmTransport::Options& options) {
  return {.gbps = options.link_gbps, .latency = options.link_latency};
}

absl::Status Check(const ShmTransport::Options& options) {
  if (!std::isfinite(options.link_gbps) || options.link_gbps < 0 || options.link_latency < absl::ZeroDuration() ||
      options.link_latency > absl::Minutes(1)) {
    return absl::InvalidArgumentError(absl::StrCat("--link_gbps is ", options.link_gbps, " and --link_latency ",
                                                   absl::FormatDuration(options.link_latency),
                                                   "; at least 0, and 0 to 1m, are wanted"));
  }
  if (static_cast<int64_t>(options.instance_id.size()) > kMaxWireText) {
    return absl::InvalidArgumentError(absl::StrCat("the engine's instance has ", options.instance_id.size(),
                                                   " bytes; at most ", kMaxWireText, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::Create(const Options& options, memory::Arena& arena,
                                                                   const Clock& clock, TransportEvents& events) {
  return CreateOver("shm", std::make_unique<ShmMemory>(arena, options.space, options.remap_on_return), options, clock,
                    events);
}

absl::StatusOr<std::unique_ptr<ShmTransport>> ShmTransport::CreateOver(const char* kind,
                                                                       std::unique_ptr<PeerMemory> memory,
                                                                       const Options& options, const Clock& clock,
                                                                       TransportEvents& events) {
  RETURN_IF_ERROR(Check(options));
  ASSIGN_OR_RETURN(ShmListener listener, ShmListener::Create(options.shm_dir, options.name));
  ASSIGN_OR_RETURN(std::unique_ptr<ShmDonor> donor, ShmDonor::Create(*memory, clock, events));
  std::unique_ptr<ShmTransport> transport(
      new ShmTransport(kind, std::move(memory), options, clock, events, std::move(listener), std::move(donor)));
  RETURN_IF_ERROR(transport->Start());
  return transport;
}

ShmTransport::ShmTransport(const char* kind, std::unique_ptr<PeerMemory> memory, const Options& options,
                           const Clock& clock, TransportEvents& events, ShmListener listener,
                           std::unique_ptr<ShmDonor> donor)
    : kind_(kind),
      memory_(std::move(memory)),
      link_gbps_(options.link_gbps),
      listener_(std::move(listener)),
      donor_(std::move(donor)),
      borrower_({.instance_id = options.instance_id, .link = Link(options)}, *memory_, clock, events),
      loader_(memory_->CreateLoader(borrower_, Link(options), clock)) {}

absl::Status ShmTransport::Start() {
  const auto meet = [this](std::shared_ptr<ShmSocket> socket) { return donor_->Meet(std::move(socket)); };
  ASSIGN_OR_RETURN(loop_, ShmLoop::Create(listener_, meet));
  borrower_.Start(*loop_);
  return absl::OkStatus();
}

// The loop first: it calls into all others.
void ShmTransport::Stop() {
  if (loop_ != nullptr) loop_->Stop();
  loader_->Stop();
  borrower_.Stop();
  donor_->Stop();
}

std::string ShmTransport::protocol() const { return absl::StrCat(kind_, ".", kShmVersion); }

void ShmTransport::Open(const OpenSpec& spec) {
  OpenSpec open = spec;
  open.channel = ShmPeerPath(channel(), spec.channel);
  borrower_.Open(open);
}

std::vector<Ticket> ShmTransport::Store(std::span<const StorePiece> pieces, const backend::Fence& after) {
  std::vector<Ticket> tickets;
  tickets.reserve(pieces.size());
  for (const StorePiece& piece : pieces) {
    tickets.push_back(Ticket(next_ticket_++));
    borrower_.Store(tickets.back(), piece, after);
  }
  return tickets;
}

std::unique_ptr<SliceStream> ShmTransport::BeginStream(StreamSpec spec, const backend::Fence& after) {
  return std::make_unique<ShmSliceStream>(std::move(spec), after, *loader_);
}

Ticket ShmTransport::Load(std::vector<LoadPiece> pieces, const backend::Fence& after) {
  const Ticket ticket(next_ticket_++);
  std::shared_ptr<const PendingLoad> load = loader_->Begin(std::move(pieces), after);
  absl::MutexLock lock(&mutex_);
  loads_[ticket] = std::move(load);
  return ticket;
}

std::vector<kv::LeaseId> ShmTransport::Await(Ticket ticket) {
  std::shared_ptr<const PendingLoad> load;
  {
    absl::MutexLock lock(&mutex_);
    auto it = loads_.find(ticket);
    CHECK(it != loads_.end()) << "load " << ticket << " is unknown, or was awaited already";
    load = std::move(it->second);
    loads_.erase(it);
  }
  return load->Await();
}

TransportStats ShmTransport::stats() const {
  TransportStats stats;
  donor_->AddStats(stats);
  borrower_.AddStats(stats);
  loader_->AddStats(stats);
  return stats;
}

std::optional<double> ShmTransport::read_rate(bool in_place) const {
  if (in_place && !memory_->reads_cross_link()) return std::nullopt;
  if (link_gbps_ > 0) return link_gbps_ * 1e9 / 8;
  return Transport::read_rate(in_place);
}

}  // namespace swiftcache::engine::transport
