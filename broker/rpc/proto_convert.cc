// SPDX-License-Identifier: Apache-2.0
#include "broker/rpc/proto_convert.h"

#include <variant>

namespace swiftcache::broker::rpc {
namespace {

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
  return proto;
}

v1::EngineLoad ToProto(const membership::EngineLoad& load) {
  v1::EngineLoad proto;
  proto.set_running_requests(load.running_requests);
  proto.set_waiting_requests(load.waiting_requests);
  proto.set_kv_blocks_used(load.kv_blocks_used);
  proto.set_kv_blocks_cached(load.kv_blocks_cached);
  proto.set_steps_total(load.steps_total);
  proto.set_progress(load.progress);
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
          .state = StateOf(proto.state())};
}

membership::EngineLoad FromProto(const v1::EngineLoad& proto) {
  return {.running_requests = proto.running_requests(),
          .waiting_requests = proto.waiting_requests(),
          .kv_blocks_used = proto.kv_blocks_used(),
          .kv_blocks_cached = proto.kv_blocks_cached(),
          .steps_total = proto.steps_total(),
          .progress = proto.progress()};
}

v1::EngineStatus ToProto(const membership::EngineStatus& status) {
  v1::EngineStatus proto;
  *proto.mutable_info() = ToProto(status.info);
  *proto.mutable_load() = ToProto(status.load);
  return proto;
}

v1::WatchResponse ToProto(const loop::WatchEvent& event) {
  v1::WatchResponse proto;
  proto.set_incarnation(event.incarnation);
  proto.set_version(event.version);
  if (const auto* snapshot = std::get_if<loop::WatchEvent::Snapshot>(&event.what)) {
    proto.mutable_snapshot();  // present even when there are no engines
    for (const membership::EngineStatus& status : *snapshot) *proto.mutable_snapshot()->add_engines() = ToProto(status);
  } else if (const auto* updated = std::get_if<membership::EngineStatus>(&event.what)) {
    *proto.mutable_updated() = ToProto(*updated);
  } else {
    const auto& gone = std::get<loop::WatchEvent::Gone>(event.what);
    proto.set_removed(gone.name);
    proto.set_removed_died(gone.died);
  }
  return proto;
}

}  // namespace swiftcache::broker::rpc
