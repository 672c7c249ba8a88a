// SPDX-License-Identifier: Apache-2.0
#include "services/engine_sharing.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "common/log/log.h"
#include "services/node_id.h"

namespace swiftcache::services {
namespace {

int64_t NeverLentBlocks(const EngineFlags& flags, const engine::exec::EngineMemory& memory) {
  if (!flags.lend) return memory.num_blocks();
  const int64_t bytes = memory.kv->bytes();
  if (flags.lend_reserve_bytes > bytes) {
    LOG(WARNING) << "--lend_reserve is " << flags.lend_reserve_bytes << " bytes, KV memory has " << bytes
                 << ": this engine lends nothing; lower it, or say --lend=false where that is meant";
  }
  return std::min(memory.num_blocks(), CeilDiv(flags.lend_reserve_bytes, memory.layout.block_bytes()));
}

}  // namespace

EngineSharing::EngineSharing(const Options& options, const engine::exec::EngineMemory& memory,
                             engine::rpc::BrokerClient& broker, const Clock& clock, Metrics& metrics)
    : options_(options),
      kv_(*memory.kv),
      never_lent_blocks_(NeverLentBlocks(*options.flags, memory)),
      broker_(broker),
      clock_(clock),
      account_metrics_(metrics) {}

absl::StatusOr<std::unique_ptr<EngineSharing>> EngineSharing::Create(const Options& options, EngineDevice& device,
                                                                     const engine::exec::EngineMemory& memory,
                                                                     engine::rpc::BrokerClient& broker,
                                                                     const Clock& clock, Metrics& metrics) {
  auto sharing = std::unique_ptr<EngineSharing>(new EngineSharing(options, memory, broker, clock, metrics));
  const EngineFlags& flags = *options.flags;
  sharing->coordinator_ = std::make_unique<engine::coordinator::Coordinator>(
      engine::coordinator::Coordinator::Options{.instance_id = options.instance_id,
                                                .revoke_deadline = flags.engine.revoke_deadline,
                                                .num_blocks = memory.num_blocks(),
                                                .block_bytes = memory.layout.block_bytes(),
                                                .never_lent_blocks = sharing->never_lent_blocks_},
      clock, metrics);
  ASSIGN_OR_RETURN(sharing->transport_,
                   device.CreateTransport({.name = options.name, .instance_id = options.instance_id, .flags = &flags},
                                          *memory.kv, clock, *sharing->coordinator_));
  sharing->transport_metrics_ = std::make_unique<engine::transport::TransportMetrics>(metrics, *sharing->transport_);
  return sharing;
}

void EngineSharing::Start(std::function<void(engine::coordinator::LoopMessage)> push) {
  leases_ = engine::rpc::LeaseClient::Create(
      {.broker = options_.flags->broker,
       .instance_id = options_.instance_id,
       .token = options_.token,
       .identity = [this] { return broker_.identity(); },
       .on_limit = [this](const auto& limit) { broker_.KeepLimit(limit); },
       .on_incarnation = [this](const std::string& incarnation) { broker_.NoteIncarnation(incarnation); }},
      *coordinator_);
  coordinator_->Start(transport_.get(), leases_.get(), std::move(push));
}

engine::rpc::SharingDescription EngineSharing::Describe() const {
  return {.lease_channel = transport_->channel(),
          .node_id = NodeId(options_.flags->shm_dir, transport_->protocol()),
          .page_bytes = kv_.page_bytes(),
          .never_lent_blocks = never_lent_blocks_,
          .borrows = options_.flags->engine.may_borrow(),
          .given = [this] { return coordinator_->Given(); },
          .accounts = [this] { return coordinator_->Accounts(); },
          .registered =
              [this](const engine::coordinator::LeaseTerms& terms) {
                coordinator_->OnTerms(terms);
                leases_->Registered();
              },
          .weighted = [this](const auto& weights) { coordinator_->OnWeights(weights); }};
}

void EngineSharing::EndLeases(absl::Time deadline) {
  coordinator_->Stop(std::max(deadline, clock_.Now() + options_.flags->engine.revoke_deadline));
}

void EngineSharing::Stop() {
  if (leases_ == nullptr) return;
  coordinator_->Stop(absl::InfinitePast());
  leases_.reset();
  transport_->Stop();
}

}  // namespace swiftcache::services
