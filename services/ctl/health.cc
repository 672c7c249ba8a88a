// SPDX-License-Identifier: Apache-2.0
// swiftcachectl health: whether a server takes requests, for health checks of containers and for scripts.
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/address.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "services/ctl/commands.h"
#include "services/ctl/complaint.h"

namespace swiftcache::services::ctl {
namespace {

constexpr absl::Duration kHealthTimeout = absl::Seconds(5);
// grpc.health.v1 as bytes, since Debian has no code of it: a request for the whole server is empty, and a response
// that says SERVING is field 1 with the value 1.
constexpr char kMethod[] = "/grpc.health.v1.Health/Check";
constexpr char kServing[] = "\x08\x01";

absl::Status RunHealth(const std::string& address) {
  grpc::GenericStub stub(CreateRpcChannel(address, {}));
  grpc::ClientContext context;
  SetTimeout(context, kHealthTimeout);
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(&context, kMethod, {}, &request, &response, [&](grpc::Status ended) {
    status = std::move(ended);
    done.Notify();
  });
  done.WaitForNotification();
  if (!status.ok()) {
    const absl::Status plain = FromGrpc(status);
    if (SpeaksHttp1(plain)) {
      return absl::UnimplementedError(absl::StrCat(
          address,
          " is an HTTP port, whose health is /health; wanted: the gRPC address of a gateway, engine or broker"));
    }
    return absl::Status(plain.code(), absl::StrCat("no server answers at ", address, " (", plain.message(),
                                                   "); wanted: the gRPC address of a gateway, engine or broker"));
  }
  grpc::Slice bytes;
  if (!response.DumpToSingleSlice(&bytes).ok() ||
      std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size()) != kServing) {
    return absl::UnavailableError(
        absl::StrCat("the server at ", address,
                     " takes no requests: it starts, drains, or is a gateway that has not heard its broker"));
  }
  std::cout << "serving" << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddHealth(CLI::App& app, const Addresses& addresses, Command& chosen) {
  auto address = std::make_shared<std::string>();  // shared by the parser and the command
  CLI::App* command = app.add_subcommand("health", "Whether a server takes requests: exit code 0, or 1")->fallthrough();
  command->add_option("address", *address, "gRPC address of a gateway, engine or broker; default: --gateway")
      ->check([](const std::string& text) { return std::string(HostPort::Parse(text).status().message()); });
  command->callback(
      [&, address] { chosen = [&, address] { return RunHealth(address->empty() ? addresses.gateway : *address); }; });
}

}  // namespace swiftcache::services::ctl
