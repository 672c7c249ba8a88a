// SPDX-License-Identifier: Apache-2.0
// Tokens by gRPC: generate [HOST:PORT] [MODEL] [PROMPT]
#include <grpcpp/grpcpp.h>

#include <iostream>
#include <string>

#include "swiftcache/v1/generate.grpc.pb.h"

int main(int argc, char** argv) {
  const std::string address = argc > 1 ? argv[1] : "127.0.0.1:50051";
  swiftcache::v1::GenerateRequest request;
  request.set_model(argc > 2 ? argv[2] : "chat");
  request.set_prompt(argc > 3 ? argv[3] : "Water boils at");
  request.mutable_sampling()->set_max_tokens(40);
  request.mutable_sampling()->set_temperature(0);

  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // gRPC would ask the proxy of http_proxy for 127.0.0.1, too
  const auto stub = swiftcache::v1::GenerateService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, request);
  swiftcache::v1::GenerateResponse response;
  while (stream->Read(&response)) std::cout << response.text() << std::flush;
  const grpc::Status status = stream->Finish();
  if (!status.ok()) {
    std::cerr << address << ": error " << status.error_code() << ": " << status.error_message() << std::endl;
    return 1;
  }
  std::cout << "\n[" << response.usage().prompt_tokens() << " prompt tokens, " << response.usage().completion_tokens()
            << " generated]" << std::endl;
}
