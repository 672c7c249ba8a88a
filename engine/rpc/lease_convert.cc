// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/lease_convert.h"

namespace swiftcache::engine::rpc {
namespace {

lease::State FromProto(v1::LeaseState state) {
  switch (state) {
    case v1::GRANTED:
      return lease::State::kGranted;
    case v1::REVOKING:
      return lease::State::kRevoking;
    case v1::RELEASED:
      return lease::State::kReleased;
    case v1::FENCED:
      return lease::State::kFenced;
    default:
      return lease::State::kOffered;
  }
}

v1::LeaseState ToProto(lease::State state) {
  switch (state) {
    case lease::State::kOffered:
      return v1::OFFERED;
    case lease::State::kGranted:
      return v1::GRANTED;
    case lease::State::kRevoking:
      return v1::REVOKING;
    case lease::State::kReleased:
      return v1::RELEASED;
    case lease::State::kFenced:
      return v1::FENCED;
  }
  return v1::LEASE_STATE_UNSPECIFIED;
}

lease::Ending FromProto(v1::RevokeReason reason) {
  switch (reason) {
    case v1::OPERATOR:
      return lease::Ending::kOperator;
    case v1::LIMIT:
      return lease::Ending::kLimit;
    case v1::FAIRNESS:
      return lease::Ending::kFairness;
    case v1::BORROWER_GONE:
      return lease::Ending::kBorrowerGone;
    default:
      return lease::Ending::kBroker;
  }
}

}  // namespace

lease::Lease FromProto(const v1::Lease& proto) {
  return {.id = kv::LeaseId(proto.lease_id()),
          .donor = proto.donor(),
          .donor_instance = proto.donor_instance(),
          .borrower = proto.borrower(),
          .borrower_instance = proto.borrower_instance(),
          .borrower_model = proto.borrower_model(),
          .extent = {proto.extent().first_block(), proto.extent().num_blocks()},
          .num_bytes = proto.num_bytes(),
          .borrower_blocks = proto.borrower_blocks(),
          .epoch = kv::Epoch(proto.epoch()),
          .state = FromProto(proto.state()),
          .revoke_reason = FromProto(proto.revoke_reason()),
          .channel = proto.channel(),
          .capability = proto.capability()};
}

v1::Lease ToProto(const lease::Lease& lease) {
  v1::Lease proto;
  proto.set_lease_id(lease.id.value());
  proto.set_donor(lease.donor);
  proto.set_donor_instance(lease.donor_instance);
  proto.set_borrower(lease.borrower);
  proto.set_borrower_instance(lease.borrower_instance);
  proto.set_borrower_model(lease.borrower_model);
  proto.mutable_extent()->set_first_block(lease.extent.first_block);
  proto.mutable_extent()->set_num_blocks(lease.extent.num_blocks);
  proto.set_num_bytes(lease.num_bytes);
  proto.set_borrower_blocks(lease.borrower_blocks);
  proto.set_epoch(lease.epoch.value());
  proto.set_state(ToProto(lease.state));
  proto.set_channel(lease.channel);
  proto.set_capability(lease.capability);
  return proto;
}

v1::LeaseAccount ToProto(const std::string& borrower_model, const lease::Account& account) {
  v1::LeaseAccount proto;
  proto.set_borrower_model(borrower_model);
  proto.set_lent_bytes(account.bytes);
  proto.set_lent_byte_seconds(account.byte_seconds());
  proto.set_leases(account.leases);
  for (const lease::Ending ending : lease::kEndings) {
    const lease::Account::Ended& count = account.of(ending);
    if (count == lease::Account::Ended()) continue;
    v1::LeaseAccount::Ended& ended = *proto.add_ended();
    ended.set_reason(lease::EndingName(ending));
    ended.set_released(count.released);
    ended.set_fenced(count.fenced);
  }
  return proto;
}

}  // namespace swiftcache::engine::rpc
