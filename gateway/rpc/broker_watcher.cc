// SPDX-License-Identifier: Apache-2.0
#include "gateway/rpc/broker_watcher.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/log/log.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/rpc/watch_snapshot.h"
#include "common/sync/timed_mutex.h"
#include "gateway/rpc/convert.h"
#include "swiftcache/v1/broker.grpc.pb.h"

namespace swiftcache::gateway::rpc {
namespace {

std::vector<fleet::EngineStatus> EnginesOf(const v1::WatchResponse::Snapshot& snapshot) {
  std::vector<fleet::EngineStatus> engines;
  for (const v1::EngineStatus& engine : snapshot.engines()) engines.push_back(rpc::ToPlain(engine));
  return engines;
}

// One stream's order: a snapshot first, then versions that count up by one.
class Order {
 public:
  absl::Status Check(const v1::WatchResponse& update) {
    if (update.event_case() == v1::WatchResponse::kSnapshot) {
      incarnation_ = update.incarnation();
    } else if (update.incarnation() != incarnation_ || update.version() != version_ + 1) {
      return absl::DataLossError(absl::StrCat("update ", update.incarnation(), "/", update.version(), " after ",
                                              incarnation_, "/", version_, ", wants the next version or a snapshot"));
    }
    version_ = update.version();
    return absl::OkStatus();
  }

 private:
  std::string incarnation_;
  int64_t version_ = 0;
};

class Watcher final : public BrokerWatcher {
 public:
  Watcher(const Options& options, fleet::ClusterSink& sink)
      : options_(options),
        sink_(sink),
        stub_(v1::BrokerService::NewStub(
            CreateRpcChannel(options.address, {.max_reconnect_backoff = options.max_backoff}))),
        thread_([this] { Work(); }) {}

  ~Watcher() override {
    stop_.Notify();
    {
      absl::MutexLock lock(&mutex_);
      if (context_ != nullptr) context_->TryCancel();
    }
    thread_.join();
  }

 private:
  void Work() {
    absl::Duration backoff = options_.min_backoff;
    bool was_away = false, has_table = false;
    while (!stop_.HasBeenNotified()) {
      bool received = false;
      const absl::Status status = Follow(received);
      if (stop_.HasBeenNotified()) return;
      if (received) sink_.OnBrokerLost();
      has_table = has_table || received;
      if (received || !was_away) LogAway(has_table, status);
      was_away = true;
      backoff = received ? options_.min_backoff : std::min(backoff * 2, options_.max_backoff);
      stop_.WaitWithTimeout(backoff);
    }
  }

  void LogAway(bool has_table, const absl::Status& status) const {
    if (has_table) {
      LOG(WARNING) << "broker " << options_.address << " is away, the last table stays: " << status;
    } else {
      LOG(WARNING) << "no broker answers at " << options_.address
                   << ", no model is known yet; start one or set --broker: " << status;
    }
  }

  // One stream from its snapshot to its end.
  absl::Status Follow(bool& received) ABSL_LOCKS_EXCLUDED(mutex_) {
    grpc::ClientContext context;
    Share(&context);
    v1::WatchRequest request;
    request.set_watcher(options_.watcher);
    auto reader = stub_->Watch(&context, request);
    absl::Status status;
    v1::WatchResponse update;
    Order order;
    while (status.ok() && reader->Read(&update)) {
      received = true;
      const bool whole = !update.has_snapshot() || ReadWholeSnapshot(*reader, update);
      status = whole ? order.Check(update) : absl::DataLossError("the snapshot broke off");
      if (status.ok()) Deliver(update);
    }
    if (!status.ok()) context.TryCancel();
    const grpc::Status end = reader->Finish();
    Share(nullptr);
    return status.ok() ? FromGrpc(end) : status;
  }

  void Share(grpc::ClientContext* context) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    context_ = context;
    if (context != nullptr && stop_.HasBeenNotified()) context->TryCancel();
  }

  void Deliver(const v1::WatchResponse& update) {
    switch (update.event_case()) {
      case v1::WatchResponse::kSnapshot:
        return sink_.OnSnapshot(update.incarnation(), EnginesOf(update.snapshot()));
      case v1::WatchResponse::kUpdated:
        return sink_.OnUpdate(rpc::ToPlain(update.updated()));
      case v1::WatchResponse::kRemoved:
        return sink_.OnRemoved(update.removed(), update.removed_died());
      case v1::WatchResponse::kLease:  // of no use to the gateway
      case v1::WatchResponse::kLimit:
      case v1::WatchResponse::EVENT_NOT_SET:
        return;
    }
  }

  const Options options_;
  fleet::ClusterSink& sink_;
  const std::unique_ptr<v1::BrokerService::Stub> stub_;
  TimedNotification stop_;
  absl::Mutex mutex_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<BrokerWatcher> BrokerWatcher::Create(const Options& options, fleet::ClusterSink& sink) {
  return std::make_unique<Watcher>(options, sink);
}

}  // namespace swiftcache::gateway::rpc
