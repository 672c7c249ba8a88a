// SPDX-License-Identifier: Apache-2.0
// A channel to a server that is there.
//
//   auto stub = v1::EngineService::NewStub(fakes::ConnectedChannel(server->address()));
#pragma once

#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"

namespace swiftcache::fakes {

/// On a busy machine the first attempt to connect may take more than the second that it is given, and a call fails with
/// it: this waits.
inline std::shared_ptr<grpc::Channel> ConnectedChannel(const std::string& address) {
  auto channel = CreateRpcChannel(address, {});
  EXPECT_TRUE(channel->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(20))));
  return channel;
}

}  // namespace swiftcache::fakes
