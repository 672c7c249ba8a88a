// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/outbound.h"

#include <pthread.h>

#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace swiftcache::engine::exec {

void Outbound::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "outbound");
    Run();
  });
}

void Outbound::Deliver(OutboundBatch batch) {
  if (!batch.empty()) mailbox_.Push(std::move(batch));
}

void Outbound::Stop() {
  mailbox_.Close();
  if (thread_.joinable()) {
    thread_.join();
  } else {
    Run();
  }
}

void Outbound::Run() {
  for (;;) {
    std::vector<OutboundBatch> batches = mailbox_.TakeAll(absl::InfiniteDuration());
    if (batches.empty()) return;  // closed
    for (OutboundBatch& batch : batches) CallSinks(std::move(batch), metrics_, before_done_);
  }
}

}  // namespace swiftcache::engine::exec
