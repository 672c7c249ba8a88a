// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/live_requests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace swiftcache::engine::exec {
namespace {

int64_t LengthOf(const Continuation& continuation) { return continuation.tokens.size(); }

}  // namespace

void LengthCounts::Add(int64_t length) {
  if (length >= static_cast<int64_t>(counts_.size())) counts_.resize(length + 1);
  ++counts_[length];
  longest_ = std::max(longest_, length);
}

void LengthCounts::Remove(int64_t length) {
  CHECK_GT(count(length), 0) << "nothing is " << length << " long";
  --counts_[length];
  while (longest_ > 0 && counts_[longest_] == 0) --longest_;
}

LiveRequest& LiveRequests::Add(std::unique_ptr<LiveRequest> request) {
  const auto [live, is_new] = by_id_.emplace(request->request.request_id, std::move(request));
  CHECK(is_new) << "request_id " << live->first << " is that of a live request";
  return *live->second;
}

LiveRequest* LiveRequests::Find(const std::string& request_id) const {
  const auto live = by_id_.find(request_id);
  return live == by_id_.end() ? nullptr : live->second.get();
}

std::unique_ptr<LiveRequest> LiveRequests::Take(LiveRequest& request) {
  if (request.parked) Unpark(request);
  for (const auto& continuation : request.continuations) lengths_.Remove(LengthOf(*continuation));
  const auto live = by_id_.find(request.request.request_id);
  std::unique_ptr<LiveRequest> taken = std::move(live->second);
  by_id_.erase(live);
  return taken;
}

Continuation* LiveRequests::Begin(LiveRequest& request) {
  Continuation* continuation = request.Begin(block_tokens_);
  lengths_.Add(LengthOf(*continuation));
  return continuation;
}

// The longer one is added first, so that the longest does not go down and up again.
void LiveRequests::Append(Continuation& continuation, int32_t token) {
  const int64_t length = LengthOf(continuation);
  continuation.tokens.push_back(token);
  lengths_.Add(length + 1);
  lengths_.Remove(length);
}

void LiveRequests::Park(LiveRequest& request) {
  CHECK(parked_.insert(&request).second);
  request.parked = true;
  parked_tokens_ += LengthOf(*request.continuations.front());
}

void LiveRequests::Unpark(LiveRequest& request) {
  CHECK_EQ(parked_.erase(&request), 1u);
  request.parked = false;
  parked_tokens_ -= LengthOf(*request.continuations.front());
}

absl::Status LiveRequests::CheckInvariants() const {
  LengthCounts lengths;
  int64_t parked = 0, parked_tokens = 0;
  for (const auto& [id, request] : by_id_) {
    int64_t done = 0;
    for (const auto& continuation : request->continuations) {
      lengths.Add(LengthOf(*continuation));
      done += continuation->done;
    }
    if (done != request->num_done) {
      return absl::InternalError(
          absl::StrCat(id, " has ", done, " finished continuations, counted ", request->num_done));
    }
    if (request->parked != parked_.contains(request.get())) {
      return absl::InternalError(absl::StrCat(id, " is parked: ", request->parked, ", or is listed so"));
    }
    parked += request->parked;
    if (request->parked) parked_tokens += LengthOf(*request->continuations.front());
  }
  for (int64_t length = 0; length <= std::max(lengths.longest(), lengths_.longest()); ++length) {
    if (lengths.count(length) == lengths_.count(length)) continue;
    return absl::InternalError(absl::StrCat(lengths.count(length), " continuations have ", length, " tokens, counted ",
                                            lengths_.count(length)));
  }
  if (lengths.longest() == lengths_.longest() && parked == static_cast<int64_t>(parked_.size()) &&
      parked_tokens == parked_tokens_) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("the longest has ", lengths.longest(), " tokens, counted ",
                                          lengths_.longest(), "; ", parked, " parked with ", parked_tokens,
                                          " tokens, counted ", parked_.size(), " with ", parked_tokens_));
}

}  // namespace swiftcache::engine::exec
