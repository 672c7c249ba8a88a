// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/proto_convert.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "common/base/name.h"
#include "common/base/units.h"

namespace swiftcache::broker::rpc {
namespace {

using ledger::LeaseState;
using membership::EngineState;

EngineState StateOf(v1::EngineState state) {
  switch (state) {
    case v1::READY:
      return EngineState::kReady;
    case v1::DRAINING:
      return EngineState::kDraining;
    case v1::STALLED:
      return EngineState::kStalled;
    default:
      return EngineState::kStarting;
  }
}

v1::EngineState StateOf(EngineState state) {
  switch (state) {
    case EngineState::kStarting:
      return v1::STARTING;
    case EngineState::kReady:
      return v1::READY;
    case EngineState::kDraining:
      return v1::DRAINING;
    case EngineState::kStalled:
      return v1::STALLED;
  }
  return v1::ENGINE_STATE_UNSPECIFIED;
}

LeaseState StateOf(v1::LeaseState state) {
  switch (state) {
    case v1::GRANTED:
      return LeaseState::kGranted;
    case v1::REVOKING:
      return LeaseState::kRevoking;
    case v1::RELEASED:
      return LeaseState::kReleased;
    case v1::FENCED:
      return LeaseState::kFenced;
    default:
      return LeaseState::kOffered;
  }
}

v1::LeaseState StateOf(LeaseState state) {
  switch (state) {
    case LeaseState::kOffered:
      return v1::OFFERED;
    case LeaseState::kGranted:
      return v1::GRANTED;
    case LeaseState::kRevoking:
      return v1::REVOKING;
    case LeaseState::kReleased:
      return v1::RELEASED;
    case LeaseState::kFenced:
      return v1::FENCED;
  }
  return v1::LEASE_STATE_UNSPECIFIED;
}

v1::RevokeReason ReasonOf(ledger::RevokeReason reason) {
  switch (reason) {
    case ledger::RevokeReason::kOperator:
      return v1::OPERATOR;
    case ledger::RevokeReason::kLimit:
      return v1::LIMIT;
    case ledger::RevokeReason::kFairness:
      return v1::FAIRNESS;
    case ledger::RevokeReason::kBorrowerGone:
      return v1::BORROWER_GONE;
  }
  return v1::REVOKE_REASON_UNSPECIFIED;
}

v1::Lease ForWatcher(const ledger::Lease& lease, const std::string& instance_id) {
  v1::Lease proto = ToProto(lease);
  const bool own = instance_id == lease.donor.instance_id || instance_id == lease.borrower.instance_id;
  if (!own || instance_id.empty()) proto.clear_capability();
  return proto;
}

v1::EngineInfo ToProto(const membership::EngineInfo& info) {
  v1::EngineInfo proto;
  proto.set_name(info.name);
  proto.set_instance_id(info.instance_id);
  proto.set_model_name(info.model_name);
  proto.set_address(info.address);
  v1::KvGeometry& kv = *proto.mutable_kv();
  kv.set_num_layers(info.kv.num_layers);
  kv.set_num_kv_heads(info.kv.num_kv_heads);
  kv.set_head_dim(info.kv.head_dim);
  kv.set_kv_cache_dtype(info.kv.kv_cache_dtype);
  kv.set_block_tokens(info.kv.block_tokens);
  kv.set_block_bytes(info.kv.block_bytes);
  kv.set_num_blocks(info.kv.num_blocks);
  proto.set_max_model_len_tokens(info.max_model_len_tokens);
  proto.set_model_card_hash(info.model_card_hash);
  proto.set_state(StateOf(info.state));
  proto.set_lease_channel(info.lease_channel);
  proto.set_node_id(info.node_id);
  proto.set_page_bytes(info.page_bytes);
  proto.set_never_lent_blocks(info.never_lent_blocks);
  proto.set_borrows(info.borrows);
  proto.set_registration(info.registration);
  return proto;
}

v1::LeaseAccount ToProto(const membership::LeaseAccount& account) {
  v1::LeaseAccount proto;
  proto.set_borrower_model(account.borrower_model);
  proto.set_lent_bytes(account.lent_bytes);
  proto.set_lent_byte_seconds(account.lent_byte_seconds);
  proto.set_leases(account.leases);
  for (const membership::LeaseAccount::Ended& ended : account.ended) {
    v1::LeaseAccount::Ended& added = *proto.add_ended();
    added.set_reason(ended.reason);
    added.set_released(ended.released);
    added.set_fenced(ended.fenced);
  }
  return proto;
}

// What one engine may make all watchers carry has a bound.
constexpr int kMostAccounts = 64, kMostReasons = 16;
constexpr size_t kMostAccountsBytes = 32 * kKiB;  // with the longest name of each of so many models, and short reasons

membership::LeaseAccount FromProto(const v1::LeaseAccount& proto) {
  membership::LeaseAccount account{.borrower_model = proto.borrower_model(),
                                   .lent_bytes = proto.lent_bytes(),
                                   .lent_byte_seconds = proto.lent_byte_seconds(),
                                   .leases = proto.leases()};
  for (int i = 0; i < std::min(proto.ended_size(), kMostReasons); ++i) {
    const v1::LeaseAccount::Ended& ended = proto.ended(i);
    if (IsName(ended.reason())) account.ended.push_back({ended.reason(), ended.released(), ended.fenced()});
  }
  return account;
}

v1::EngineLoad ToProto(const membership::LoadReport& load) {
  v1::EngineLoad proto;
  proto.set_running_requests(load.running_requests);
  proto.set_waiting_requests(load.waiting_requests);
  proto.set_kv_blocks_used(load.kv_blocks_used);
  proto.set_kv_blocks_cached(load.kv_blocks_cached);
  proto.set_progress(load.progress);
  proto.set_still_micros(load.still_micros);
  proto.set_prompt_tokens_computed(load.prompt_tokens_computed);
  proto.set_prompt_tokens_local(load.prompt_tokens_local);
  proto.set_prompt_tokens_donor(load.prompt_tokens_donor);
  proto.set_reclaims(load.reclaims);
  proto.set_last_reclaim_micros(load.last_reclaim_micros);
  proto.set_saved_tokens(load.saved_tokens);
  proto.set_again_for_loans_tokens(load.again_for_loans_tokens);
  proto.set_again_for_losses_tokens(load.again_for_losses_tokens);
  for (const membership::LeaseAccount& account : load.accounts) *proto.add_accounts() = ToProto(account);
  return proto;
}

}  // namespace

membership::EngineInfo FromProto(const v1::EngineInfo& proto) {
  return {.name = proto.name(),
          .instance_id = proto.instance_id(),
          .model_name = proto.model_name(),
          .address = proto.address(),
          .kv = {.num_layers = proto.kv().num_layers(),
                 .num_kv_heads = proto.kv().num_kv_heads(),
                 .head_dim = proto.kv().head_dim(),
                 .kv_cache_dtype = proto.kv().kv_cache_dtype(),
                 .block_tokens = proto.kv().block_tokens(),
                 .block_bytes = proto.kv().block_bytes(),
                 .num_blocks = proto.kv().num_blocks()},
          .max_model_len_tokens = proto.max_model_len_tokens(),
          .model_card_hash = proto.model_card_hash(),
          .state = StateOf(proto.state()),
          .lease_channel = proto.lease_channel(),
          .node_id = proto.node_id(),
          .page_bytes = proto.page_bytes(),
          .never_lent_blocks = proto.never_lent_blocks(),
          .borrows = proto.borrows(),
          .registration = proto.registration()};
}

membership::LoadReport FromProto(const v1::EngineLoad& proto) {
  membership::LoadReport load{.running_requests = proto.running_requests(),
                              .waiting_requests = proto.waiting_requests(),
                              .kv_blocks_used = proto.kv_blocks_used(),
                              .kv_blocks_cached = proto.kv_blocks_cached(),
                              .progress = proto.progress(),
                              .still_micros = std::max<int64_t>(0, proto.still_micros()),
                              .prompt_tokens_computed = proto.prompt_tokens_computed(),
                              .prompt_tokens_local = proto.prompt_tokens_local(),
                              .prompt_tokens_donor = proto.prompt_tokens_donor(),
                              .reclaims = proto.reclaims(),
                              .last_reclaim_micros = proto.last_reclaim_micros(),
                              .saved_tokens = proto.saved_tokens(),
                              .again_for_loans_tokens = proto.again_for_loans_tokens(),
                              .again_for_losses_tokens = proto.again_for_losses_tokens()};
  size_t bytes = 0;
  for (int i = 0; i < std::min(proto.accounts_size(), kMostAccounts); ++i) {
    bytes += proto.accounts(i).ByteSizeLong();
    if (bytes > kMostAccountsBytes) break;
    if (IsName(proto.accounts(i).borrower_model())) load.accounts.push_back(FromProto(proto.accounts(i)));
  }
  return load;
}

v1::EngineStatus ToProto(const membership::EngineStatus& status) {
  v1::EngineStatus proto;
  *proto.mutable_info() = ToProto(status.info);
  *proto.mutable_load() = ToProto(status.load);
  return proto;
}

ledger::Lease FromProto(const v1::Lease& proto) {
  const LeaseState state = StateOf(proto.state());
  return {.id = ledger::LeaseId(proto.lease_id()),
          .donor = {proto.donor(), proto.donor_instance()},
          .borrower = {proto.borrower(), proto.borrower_instance()},
          .borrower_model = proto.borrower_model(),
          .extent = {.first_block = proto.extent().first_block(), .num_blocks = proto.extent().num_blocks()},
          .num_bytes = proto.num_bytes(),
          .borrower_blocks = proto.borrower_blocks(),
          .epoch = state == LeaseState::kOffered ? std::nullopt : std::optional(ledger::Epoch(proto.epoch())),
          .state = state,
          .channel = proto.channel(),
          .capability = proto.capability()};
}

v1::Lease ToProto(const ledger::Lease& lease) {
  v1::Lease proto;
  proto.set_lease_id(lease.id.value());
  proto.set_donor(lease.donor.name);
  proto.set_donor_instance(lease.donor.instance_id);
  proto.set_borrower(lease.borrower.name);
  proto.set_borrower_instance(lease.borrower.instance_id);
  proto.set_borrower_model(lease.borrower_model);
  proto.mutable_extent()->set_first_block(lease.extent.first_block);
  proto.mutable_extent()->set_num_blocks(lease.extent.num_blocks);
  proto.set_num_bytes(lease.num_bytes);
  proto.set_borrower_blocks(lease.borrower_blocks);
  if (lease.epoch.has_value()) proto.set_epoch(lease.epoch->value());
  proto.set_state(StateOf(lease.state));
  if (lease.revoke_reason.has_value()) proto.set_revoke_reason(ReasonOf(*lease.revoke_reason));
  proto.set_channel(lease.channel);
  proto.set_capability(lease.capability);
  return proto;
}

v1::LeaseLimit ToProto(const ledger::LeaseLimit& limit) {
  v1::LeaseLimit proto;
  proto.set_model_name(limit.model_name);
  if (limit.max_borrowed_bytes.has_value()) proto.set_max_borrowed_bytes(*limit.max_borrowed_bytes);
  proto.set_set_at_micros(limit.set_at_micros);
  return proto;
}

ledger::LeaseLimit FromProto(const v1::LeaseLimit& proto) {
  ledger::LeaseLimit limit{.model_name = proto.model_name(), .set_at_micros = proto.set_at_micros()};
  if (proto.has_max_borrowed_bytes()) limit.max_borrowed_bytes = proto.max_borrowed_bytes();
  return limit;
}

namespace {

constexpr int kMostInAPart = 512;           // of each kind: some 200 KiB, where engines say no more than they should
constexpr size_t kMostInAPartBytes = kMiB;  // or what has more by itself

std::vector<v1::WatchResponse> PartsOf(const loop::WatchEvent::Snapshot& snapshot, const std::string& instance_id) {
  std::vector<v1::WatchResponse> parts(1);
  parts[0].mutable_snapshot();  // present even when there are no engines
  size_t part_bytes = 0;
  // A part is full when it has kMostInAPart of the kind that is being added, or no room for so many bytes more.
  const auto next = [&](int in_part, size_t bytes) -> v1::WatchResponse::Snapshot& {
    if (in_part == kMostInAPart || (part_bytes > 0 && part_bytes + bytes > kMostInAPartBytes)) {
      parts.back().mutable_snapshot()->set_more(true);
      parts.emplace_back();
      part_bytes = 0;
    }
    part_bytes += bytes;
    return *parts.back().mutable_snapshot();
  };
  for (const membership::EngineStatus& status : snapshot.engines) {
    v1::EngineStatus engine = rpc::ToProto(status);
    *next(parts.back().snapshot().engines_size(), engine.ByteSizeLong()).add_engines() = std::move(engine);
  }
  for (const ledger::Lease& plain : snapshot.leases) {
    v1::Lease lease = ForWatcher(plain, instance_id);
    *next(parts.back().snapshot().leases_size(), lease.ByteSizeLong()).add_leases() = std::move(lease);
  }
  for (const ledger::LeaseLimit& plain : snapshot.limits) {
    if (instance_id.empty() && !plain.max_borrowed_bytes.has_value()) continue;
    v1::LeaseLimit limit = rpc::ToProto(plain);
    *next(parts.back().snapshot().limits_size(), limit.ByteSizeLong()).add_limits() = std::move(limit);
  }
  return parts;
}

}  // namespace

std::vector<v1::WatchResponse> ToProto(const loop::WatchEvent& event, const std::string& instance_id) {
  std::vector<v1::WatchResponse> messages(1);
  v1::WatchResponse& proto = messages[0];
  if (const auto* snapshot = std::get_if<loop::WatchEvent::Snapshot>(&event.what)) {
    messages = PartsOf(*snapshot, instance_id);
  } else if (const auto* updated = std::get_if<membership::EngineStatus>(&event.what)) {
    *proto.mutable_updated() = ToProto(*updated);
  } else if (const auto* lease = std::get_if<ledger::Lease>(&event.what)) {
    *proto.mutable_lease() = ForWatcher(*lease, instance_id);
  } else if (const auto* limit = std::get_if<ledger::LeaseLimit>(&event.what)) {
    *proto.mutable_limit() = ToProto(*limit);
  } else {
    const auto& gone = std::get<membership::Removed>(event.what);
    proto.set_removed(gone.name);
    proto.set_removed_died(gone.died);
  }
  for (v1::WatchResponse& message : messages) message.set_incarnation(event.incarnation);
  return messages;
}

}  // namespace swiftcache::broker::rpc
