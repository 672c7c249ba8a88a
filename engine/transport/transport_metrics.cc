// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/transport_metrics.h"

#include <string>

namespace swiftcache::engine::transport {
namespace {

prometheus::Counter& BytesCounter(Metrics& registry, const Transport& transport, const char* direction) {
  return registry.Counter("swiftcache_kv_transfer_bytes_total",
                          "KV that the transport moved: as a borrower store and load, as a donor receive",
                          {{"direction", direction}, {"transport", transport.kind()}});
}

prometheus::Counter& Seconds(Metrics& registry, const Transport& transport, const char* direction) {
  return registry.Counter("swiftcache_kv_transfer_seconds_total",
                          "Time in which the transport had KV of this direction under way",
                          {{"direction", direction}, {"transport", transport.kind()}});
}

}  // namespace

TransportMetrics::TransportMetrics(Metrics& registry, const Transport& transport)
    : transport_(transport),
      stored_(BytesCounter(registry, transport, "store")),
      loaded_(BytesCounter(registry, transport, "load")),
      received_(BytesCounter(registry, transport, "receive")),
      store_seconds_(Seconds(registry, transport, "store")),
      load_seconds_(Seconds(registry, transport, "load")) {}

void TransportMetrics::Update() {
  absl::MutexLock lock(&mutex_);
  const TransportStats now = transport_.stats();
  stored_.Increment(static_cast<double>(now.stored_bytes - told_.stored_bytes));
  loaded_.Increment(static_cast<double>(now.loaded_bytes - told_.loaded_bytes));
  received_.Increment(static_cast<double>(now.received_bytes - told_.received_bytes));
  store_seconds_.Increment(absl::ToDoubleSeconds(now.store_time - told_.store_time));
  load_seconds_.Increment(absl::ToDoubleSeconds(now.load_time - told_.load_time));
  told_ = now;
}

}  // namespace swiftcache::engine::transport
