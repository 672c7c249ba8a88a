// SPDX-License-Identifier: Apache-2.0
#include "engine/transport/transport_metrics.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/fakes/fake_transport.h"

namespace swiftcache::engine::transport {
namespace {

bool Has(const Metrics& registry, const std::string& line) {
  return ("\n" + registry.Serialize()).find("\n" + line + "\n") != std::string::npos;
}

TEST(TransportMetricsTest, TotalsAreToldOnceHoweverOftenTheyAreAskedFor) {
  Metrics registry;
  FakeTransport transport;
  TransportMetrics metrics(registry, transport);
  transport.SetStats({.stored_bytes = 10,
                      .loaded_bytes = 200,
                      .received_bytes = 3000,
                      .store_time = absl::Milliseconds(500),
                      .load_time = absl::Milliseconds(1500)});
  metrics.Update();
  metrics.Update();
  EXPECT_TRUE(Has(registry, R"(swiftcache_kv_transfer_bytes_total{direction="store",transport="fake"} 10)"));
  EXPECT_TRUE(Has(registry, R"(swiftcache_kv_transfer_bytes_total{direction="load",transport="fake"} 200)"));
  EXPECT_TRUE(Has(registry, R"(swiftcache_kv_transfer_bytes_total{direction="receive",transport="fake"} 3000)"));
  EXPECT_TRUE(Has(registry, R"(swiftcache_kv_transfer_seconds_total{direction="store",transport="fake"} 0.5)"));
  EXPECT_TRUE(Has(registry, R"(swiftcache_kv_transfer_seconds_total{direction="load",transport="fake"} 1.5)"));
  TransportStats stats = transport.stats();
  stats.stored_bytes = 11;
  transport.SetStats(stats);
  metrics.Update();
  EXPECT_TRUE(Has(registry, R"(swiftcache_kv_transfer_bytes_total{direction="store",transport="fake"} 11)"));
}

TEST(TransportMetricsTest, BeforeAnythingMovedTheCountersAreThereAndZero) {
  Metrics registry;
  FakeTransport transport;
  TransportMetrics metrics(registry, transport);
  EXPECT_TRUE(Has(registry, R"(swiftcache_kv_transfer_bytes_total{direction="receive",transport="fake"} 0)"));
}

}  // namespace
}  // namespace swiftcache::engine::transport
