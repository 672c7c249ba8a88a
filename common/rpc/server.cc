// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/wall_time.h"
#include "common/rpc/address.h"
#include "common/rpc/callback_pulse.h"
#include "common/rpc/listener.h"
#include "common/rpc/reflection_door.h"

namespace swiftcache {
namespace {

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
using ExternalConnection = grpc::ServerBuilder::experimental_type::ExternalConnectionType;

/// Tells reflection the full names of the services while the server is built, since grpc::Service does not have them.
class ServiceNames final : public grpc::ServerBuilderPlugin {
 public:
  explicit ServiceNames(ReflectionDoor* reflection) : reflection_(reflection) {}
  std::string name() override { return "service_names"; }
  void InitServer(grpc::ServerInitializer* server) override {
    std::vector<std::string> names = *server->GetServiceList();
    names.push_back("grpc.health.v1.Health");  // which the server registers when it starts
    reflection_->set_services(std::move(names));
  }
  void Finish(grpc::ServerInitializer*) override {}
  void ChangeArguments(const std::string&, void*) override {}

 private:
  ReflectionDoor* const reflection_;
};

class ServiceNamesOption final : public grpc::ServerBuilderOption {
 public:
  explicit ServiceNamesOption(ReflectionDoor* reflection) : reflection_(reflection) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<ServiceNames>(reflection_));
  }

 private:
  ReflectionDoor* const reflection_;
};

class GrpcServer final : public RpcServer {
 public:
  GrpcServer(std::unique_ptr<ReflectionDoor> reflection, std::unique_ptr<grpc::Server> server,
             std::unique_ptr<Acceptor> acceptor, std::unique_ptr<Listener> listener, std::string address)
      : reflection_(std::move(reflection)),
        server_(std::move(server)),
        acceptor_(std::move(acceptor)),
        listener_(std::move(listener)),
        address_(std::move(address)),
        pulse_(std::make_unique<CallbackPulse>()) {
    SetServing(false);
    listener_->Start([this](int listening, int connection) {
      Acceptor::NewConnectionParameters parameters;
      parameters.listener_fd = listening;
      parameters.fd = connection;
      acceptor_->HandleNewConnection(&parameters);
    });
  }
  ~GrpcServer() override { Stop(absl::InfinitePast()); }

  std::string address() const override { return address_; }

  void SetServing(bool serving) override {
    server_->GetHealthCheckService()->SetServingStatus("", serving);
    for (const std::string& service : reflection_->services()) {
      server_->GetHealthCheckService()->SetServingStatus(service, serving);
    }
  }

  void Stop(absl::Time deadline) override {
    std::call_once(stopped_, [&] {
      SetServing(false);
      pulse_.reset();
      listener_->Stop();  // gRPC does not close what it is given after Shutdown
      server_->Shutdown(absl::ToChronoTime(std::max(ToWallTime(deadline), absl::UnixEpoch())));
      server_->Wait();
    });
  }

 private:
  const std::unique_ptr<ReflectionDoor> reflection_;
  const std::unique_ptr<grpc::Server> server_;
  const std::unique_ptr<Acceptor> acceptor_;
  const std::unique_ptr<Listener> listener_;
  const std::string address_;
  std::unique_ptr<CallbackPulse> pulse_;
  std::once_flag stopped_;
};

void Configure(const RpcServer::Options& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.max_request_bytes);
  builder.SetMaxSendMessageSize(options.max_response_bytes);
  // gRPC inflates a message before it looks at its size: a megabyte becomes a gigabyte.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetResourceQuota(grpc::ResourceQuota("rpc_server").Resize(static_cast<size_t>(options.max_memory_bytes)));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  // Clients may ping as often as CreateRpcChannel does; a client whose host vanished is noticed and its calls
  // cancelled.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The bandwidth probe pings after every message: a fifth of the CPU time of an idle cluster. Long messages get a
  // larger window without it.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(kUntakenTimeout)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Create(const Options& options,
                                                             const std::vector<grpc::Service*>& services) {
  ASSIGN_OR_RETURN(HostPort where, HostPort::Parse(options.listen));
  [[maybe_unused]] static const bool has_health = (grpc::EnableDefaultHealthCheckService(true), true);
  ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener, Listener::Create(where));
  where.port = listener->port();
  auto reflection = std::make_unique<ReflectionDoor>();
  grpc::ServerBuilder builder;
  Configure(options, builder);
  builder.SetOption(std::make_unique<ServiceNamesOption>(reflection.get()));
  std::unique_ptr<Acceptor> acceptor = builder.experimental().AddExternalConnectionAcceptor(
      ExternalConnection::FROM_FD, grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  builder.RegisterService(reflection.get());
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError(absl::StrCat("gRPC cannot serve on ", where.ToString()));
  return std::make_unique<GrpcServer>(std::move(reflection), std::move(server), std::move(acceptor),
                                      std::move(listener), where.ToString());
}

}  // namespace swiftcache
