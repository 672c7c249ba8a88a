// SPDX-License-Identifier: Apache-2.0
#include "engine/rpc/submitter.h"

#include "absl/strings/escaping.h"
#include "common/base/traceparent.h"
#include "common/log/log.h"
#include "common/rpc/status.h"

namespace swiftcache::engine::rpc {
namespace {

// The engine logs those requests that it accepted.
void LogRefusal(const RequestTag& tag, const absl::Status& status) {
  LOG(INFO) << tag << "refused " << absl::StatusCodeToString(status.code()) << ": "
            << absl::CHexEscape(status.message());
}

}  // namespace

absl::StatusOr<exec::Request> Submitter::Check(const v1::EngineGenerateRequest& request,
                                               const std::string& traceparent) const {
  exec::Engine* const engine = engine_;
  absl::StatusOr<exec::Request> plain = engine == nullptr ? absl::UnavailableError("the engine is starting; try again")
                                                          : ToRequest(request, limits_, random_);
  const std::string trace = ParseTraceparent(traceparent);
  if (plain.ok()) {
    plain->traceparent = trace;
    plain->number = exec::RequestNumber(++last_number_);
    return plain;
  }
  const std::string id = request.request_id().substr(0, limits_.max_request_id_bytes);  // it may be what is wrong
  LogRefusal({id, trace}, plain.status());
  if (engine != nullptr) engine->CountRefusal(plain.status());
  return plain;
}

absl::Status Submitter::Submit(exec::Request request, std::unique_ptr<exec::ResponseSink> sink) const {
  const std::string id = request.request_id, trace = request.traceparent;
  absl::Status status = engine_.load()->Submit(std::move(request), std::move(sink));
  if (status.ok()) return status;
  if (absl::IsResourceExhausted(status)) status = WithRetryDelay(std::move(status), kRetryDelay);
  LogRefusal({id, trace}, status);
  return status;
}

}  // namespace swiftcache::engine::rpc
