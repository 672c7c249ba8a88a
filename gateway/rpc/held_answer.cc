// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/held_answer.h"

#include <grpc/grpc.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/wall_time.h"
#include "common/rpc/status.h"
#include "gateway/rpc/generate_stream.h"

namespace swiftcache::gateway::rpc {
namespace {

constexpr int64_t kBytesOfATimeout = int64_t{32} << 20;
constexpr char kUnread[] = "the answer was not read in time: read faster, or ask for less at once";

}  // namespace

absl::Status HeldAnswer::Hold(size_t bytes) {
  if (held_.Grow(static_cast<int64_t>(bytes))) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the call takes ", bytes, " bytes more, and those whose answers are not read yet take most of the ",
                   limit_bytes_, " bytes that they may: read answers, ask for less at once, or try again later"));
}

void HeldAnswer::End(const absl::Status& status) {
  // The alarm has a share of its own in the call, since it may ring, or hear that it need not, when the call is over.
  grpc_call_ref(context_.c_call());
  const auto cut = [call = std::shared_ptr<grpc_call>(context_.c_call(), grpc_call_unref)](bool late) {
    if (late) grpc_call_cancel_with_status(call.get(), GRPC_STATUS_DEADLINE_EXCEEDED, kUnread, nullptr);
  };
  const absl::Duration timeout = answer_timeout_ * (1 + held_.bytes() / kBytesOfATimeout);
  alarm_.Set(absl::ToChronoTime(WallTimeNow() + timeout), cut);
  Finish(ToGrpc(WithRetryInfo(status)));  // may delete this
}

}  // namespace swiftcache::gateway::rpc
