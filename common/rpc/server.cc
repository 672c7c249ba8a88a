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
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/wall_time.h"
#include "common/rpc/address.h"
#include "common/rpc/callback_pulse.h"
#include "common/rpc/reflection_door.h"

namespace swiftcache {
namespace {

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
  GrpcServer(std::unique_ptr<ReflectionDoor> reflection, std::unique_ptr<grpc::Server> server, HostPort where)
      : reflection_(std::move(reflection)),
        server_(std::move(server)),
        address_(where.ToString()),
        pulse_(std::make_unique<CallbackPulse>()) {
    SetServing(false);
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
      server_->Shutdown(absl::ToChronoTime(std::max(ToWallTime(deadline), absl::UnixEpoch())));
      server_->Wait();
    });
  }

 private:
  const std::unique_ptr<ReflectionDoor> reflection_;
  const std::unique_ptr<grpc::Server> server_;
  const std::string address_;
  std::unique_ptr<CallbackPulse> pulse_;
  std::once_flag stopped_;
};

const char* RemedyOf(int why) {
  switch (why) {
    case EACCES:
      return "choose a port of 1024 or above";
    case EADDRNOTAVAIL:
      return "give one of this machine's addresses";
    default:
      return "stop what holds the address, or name another with --listen";
  }
}

// gRPC does not say why it could not listen: ask the kernel the same question.
absl::Status CannotListen(const HostPort& where) {
  const auto error = [&where](bool may_pass, const char* why, const char* remedy) {
    std::string text = absl::StrCat("cannot listen on ", where.ToString(), " (--listen): ", why, "; ", remedy);
    return may_pass ? absl::UnavailableError(text) : absl::InvalidArgumentError(text);
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int rc = getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found); rc != 0) {
    return error(rc == EAI_AGAIN, gai_strerror(rc), RemedyOf(EADDRNOTAVAIL));
  }
  int why = 0;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) continue;
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 1) != 0) why = errno;
    close(fd);
  }
  freeaddrinfo(found);
  return error(why != EACCES, why == 0 ? "refused by gRPC" : std::strerror(why), RemedyOf(why));
}

void Configure(const RpcServer::Options& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.max_request_bytes);
  builder.SetMaxSendMessageSize(options.max_response_bytes);
  // gRPC inflates a message before it looks at its size: a megabyte becomes a gigabyte.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetResourceQuota(grpc::ResourceQuota("rpc_server").Resize(static_cast<size_t>(options.max_memory_bytes)));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // else a taken port would be shared in silence
  // Clients may ping as often as CreateRpcChannel does; a client whose host vanished is noticed and its calls
  // cancelled.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The bandwidth probe pings after every message: a fifth of the CPU time of an idle cluster. Long messages get a
  // larger window without it.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Create(const Options& options,
                                                             const std::vector<grpc::Service*>& services) {
  ASSIGN_OR_RETURN(HostPort where, HostPort::Parse(options.listen));
  [[maybe_unused]] static const bool has_health = (grpc::EnableDefaultHealthCheckService(true), true);
  int port = 0;
  auto reflection = std::make_unique<ReflectionDoor>();
  grpc::ServerBuilder builder;
  Configure(options, builder);
  builder.SetOption(std::make_unique<ServiceNamesOption>(reflection.get()));
  builder.AddListeningPort(where.ToString(), grpc::InsecureServerCredentials(), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  builder.RegisterService(reflection.get());
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return CannotListen(where);
  where.port = port;
  return std::make_unique<GrpcServer>(std::move(reflection), std::move(server), where);
}

}  // namespace swiftcache
