// SPDX-License-Identifier: Apache-2.0
// BrokerService whose Watch streams play scripts, one per stream, and whose lease RPCs answer as they are told, over
// real gRPC.
//
//   FakeBrokerService broker;
//   broker.Play({Snapshot("b1", 5, {"a"}), Removed("b1", 6, "a")});  // the next stream
//   broker.on_report = [](const v1::ReportLeaseRequest&) { return grpc::Status::OK; };
//   ASSERT_TRUE(broker.log().WaitFor("ReportLease 7"));
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "swiftcache/v1/broker.grpc.pb.h"
#include "tests/fakes/call_log.h"

namespace swiftcache::fakes {

inline v1::WatchResponse Snapshot(const std::string& incarnation, int64_t version,
                                  const std::vector<std::string>& names) {
  v1::WatchResponse news;
  news.set_incarnation(incarnation);
  news.set_version(version);
  news.mutable_snapshot();
  for (const std::string& name : names) news.mutable_snapshot()->add_engines()->mutable_info()->set_name(name);
  return news;
}

inline v1::WatchResponse Removed(const std::string& incarnation, int64_t version, const std::string& name) {
  v1::WatchResponse news;
  news.set_incarnation(incarnation);
  news.set_version(version);
  news.set_removed(name);
  return news;
}

/// A stream without a script ends with UNAVAILABLE; one with a script stays open after it until the client leaves or
/// Stop. Lease RPCs without a function are answered OK with nothing. Thread-safety: safe; functions are set before the
/// first call.
class FakeBrokerService final : public v1::BrokerService::Service {
 public:
  std::function<grpc::Status(const v1::ReportLeaseRequest&)> on_report;
  std::function<grpc::Status(const v1::RequestLeaseRequest&, v1::RequestLeaseResponse&)> on_request;
  std::function<grpc::Status(const v1::ScaleUpRequest&, v1::ScaleUpResponse&)> on_scale_up;
  grpc::Status end_of_script = {grpc::StatusCode::UNAVAILABLE, "end of the script"};
  /// "ReportLease 7", "RequestLease KEY", "ScaleUp 12", "ReportWindow 5".
  const CallLog& log() const { return log_; }

  void Play(std::vector<v1::WatchResponse> script, bool stay_open = true) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    scripts_.emplace_back(std::move(script), stay_open);
  }
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  int streams() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return streams_;
  }

  grpc::Status ReportLease(grpc::ServerContext*, const v1::ReportLeaseRequest* request,
                           v1::ReportLeaseResponse*) override {
    log_.Add(absl::StrCat("ReportLease ", request->lease().lease_id()));
    return on_report ? on_report(*request) : grpc::Status::OK;
  }
  grpc::Status RequestLease(grpc::ServerContext*, const v1::RequestLeaseRequest* request,
                            v1::RequestLeaseResponse* response) override {
    log_.Add(absl::StrCat("RequestLease ", request->request_key()));
    return on_request ? on_request(*request, *response) : grpc::Status::OK;
  }
  grpc::Status ScaleUp(grpc::ServerContext*, const v1::ScaleUpRequest* request,
                       v1::ScaleUpResponse* response) override {
    log_.Add(absl::StrCat("ScaleUp ", request->need_blocks()));
    return on_scale_up ? on_scale_up(*request, *response) : grpc::Status::OK;
  }
  grpc::Status ReportWindow(grpc::ServerContext*, const v1::ReportWindowRequest* request,
                            v1::ReportWindowResponse*) override {
    log_.Add(absl::StrCat("ReportWindow ", request->used_blocks()));
    return grpc::Status::OK;
  }
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override ABSL_LOCKS_EXCLUDED(mutex_) {
    std::pair<std::vector<v1::WatchResponse>, bool> script;
    {
      absl::MutexLock lock(&mutex_);
      ++streams_;
      if (scripts_.empty()) return {grpc::StatusCode::UNAVAILABLE, "nothing to tell"};
      script = std::move(scripts_.front());
      scripts_.pop_front();
    }
    for (const v1::WatchResponse& news : script.first) writer->Write(news);
    if (!script.second) return end_of_script;
    absl::MutexLock lock(&mutex_);
    while (!stopped_ && !context->IsCancelled()) {
      mutex_.AwaitWithTimeout(absl::Condition(&stopped_), absl::Milliseconds(5));
    }
    return grpc::Status::OK;
  }

 private:
  CallLog log_;
  mutable absl::Mutex mutex_;
  std::deque<std::pair<std::vector<v1::WatchResponse>, bool>> scripts_ ABSL_GUARDED_BY(mutex_);
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace swiftcache::fakes
