// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/reflection_door.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "swiftcache/v1/broker.grpc.pb.h"
#include "tests/fakes/connected_channel.h"
#include "tests/fakes/raw_rpc_client.h"

namespace swiftcache {
namespace {

using grpc::reflection::v1alpha::ServerReflection;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Request = ReflectionDoor::Request;
using Response = ReflectionDoor::Response;

constexpr char kMethod[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

class ReflectionDoorTest : public ::testing::Test {
 protected:
  ReflectionDoorTest() {
    auto created = RpcServer::Create({.listen = "127.0.0.1:0"}, {&broker_});
    EXPECT_TRUE(created.ok()) << created.status();
    server_ = *std::move(created);
  }

  // One stream's answers to `requests`.
  std::vector<Response> Ask(const std::vector<Request>& requests) {
    auto stub = ServerReflection::NewStub(fakes::ConnectedChannel(server_->address()));
    grpc::ClientContext context;
    SetTimeout(context, absl::Minutes(1));
    auto stream = stub->ServerReflectionInfo(&context);
    std::vector<Response> answers;
    for (const Request& request : requests) {
      EXPECT_TRUE(stream->Write(request));
      EXPECT_TRUE(stream->Read(&answers.emplace_back()));
      EXPECT_EQ(answers.back().original_request().SerializeAsString(), request.SerializeAsString());
    }
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return answers;
  }

  v1::BrokerService::CallbackService broker_;
  std::unique_ptr<RpcServer> server_;
};

Request FileOf(const std::string& symbol) {
  Request request;
  request.set_file_containing_symbol(symbol);
  return request;
}

std::vector<std::string> NamesOfFiles(const Response& answer) {
  std::vector<std::string> names;
  for (const std::string& bytes : answer.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  return names;
}

TEST_F(ReflectionDoorTest, ServicesAreListedWithHealthAndReflectionItself) {
  Request request;
  request.set_list_services("*");
  const std::vector<Response> answers = Ask({request});
  std::vector<std::string> names;
  for (const auto& service : answers[0].list_services_response().service()) names.push_back(service.name());
  for (const char* name : {"swiftcache.v1.BrokerService", "grpc.health.v1.Health"}) EXPECT_THAT(names, Contains(name));
  EXPECT_THAT(names, Contains(ServerReflection::service_full_name()));
}

TEST_F(ReflectionDoorTest, AFileComesOnceWithAllThatItImports) {
  Request by_name;
  by_name.set_file_by_filename("swiftcache/v1/broker.proto");
  const std::vector<Response> answers =
      Ask({FileOf("swiftcache.v1.BrokerService"), FileOf("swiftcache.v1.BrokerService.Register"), by_name});
  for (const Response& answer : answers) {
    const std::vector<std::string> names = NamesOfFiles(answer);
    EXPECT_EQ(names.at(0), "swiftcache/v1/broker.proto");
    EXPECT_THAT(names, Contains("google/protobuf/duration.proto").Times(1));
  }
}

TEST_F(ReflectionDoorTest, WhatIsNotThereIsSaidByName) {
  Request file, extension, numbers;
  file.set_file_by_filename("no/such.proto");
  extension.mutable_file_containing_extension()->set_containing_type("swiftcache.v1.RegisterRequest");
  numbers.set_all_extension_numbers_of_type("no.such.Type");
  const std::vector<Response> answers = Ask({file, FileOf("no.such.symbol"), extension, numbers, Request()});
  const std::vector<std::string> names = {"no/such.proto", "no.such.symbol", "extension", "no.such.Type"};
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(answers[i].error_response().error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(answers[i].error_response().error_message(), HasSubstr(names[i]));
  }
  EXPECT_EQ(answers.back().error_response().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// To look one up takes time that grows with the square of its length, with the lock of all descriptors held.
TEST_F(ReflectionDoorTest, ALongNameIsRefusedBeforeItIsLookedUp) {
  const std::string dots(1 << 20, '.');
  Request symbol = FileOf(dots), extension, numbers;
  extension.mutable_file_containing_extension()->set_containing_type(dots);
  numbers.set_all_extension_numbers_of_type(dots);
  for (const Request& request : {symbol, extension, numbers}) {
    const grpc::Status status = fakes::SendBytes(server_->address(), kMethod, request.SerializeAsString());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("wants at most 1024"));
  }
}

TEST_F(ReflectionDoorTest, CallsAreBoundedAndOthersComeWhenTheyHaveEnded) {
  auto stub = ServerReflection::NewStub(fakes::ConnectedChannel(server_->address()));
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream;
  };
  std::vector<std::unique_ptr<Call>> calls;
  Response answer;
  for (int i = 0; i < ReflectionDoor::kMaxCalls; ++i) {
    Call& call = *calls.emplace_back(std::make_unique<Call>());
    call.stream = stub->ServerReflectionInfo(&call.context);
    ASSERT_TRUE(call.stream->Write(FileOf("grpc.reflection")) && call.stream->Read(&answer));
  }
  EXPECT_EQ(fakes::SendBytes(server_->address(), kMethod, "").error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (auto& call : calls) {
    call->stream->WritesDone();
    EXPECT_TRUE(call->stream->Finish().ok());
  }
  EXPECT_THAT(Ask({FileOf("no.such.symbol")}), SizeIs(1));
}

TEST_F(ReflectionDoorTest, AStreamThatAsksNothingIsCancelledWhenTheServerEnds) {
  auto stub = ServerReflection::NewStub(fakes::ConnectedChannel(server_->address()));
  grpc::ClientContext context;
  auto stream = stub->ServerReflectionInfo(&context);
  Response answer;
  ASSERT_TRUE(stream->Write(FileOf("no.such.symbol")) && stream->Read(&answer));
  server_->Stop(absl::InfinitePast());
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(ReflectionDoorTest, ATypeWithoutExtensionsHasNone) {
  Request request;
  request.set_all_extension_numbers_of_type("swiftcache.v1.RegisterRequest");
  const Response answer = Ask({request})[0];
  EXPECT_EQ(answer.all_extension_numbers_response().base_type_name(), "swiftcache.v1.RegisterRequest");
  EXPECT_THAT(answer.all_extension_numbers_response().extension_number(), SizeIs(0));
}

TEST_F(ReflectionDoorTest, ARequestOfTooManyFieldsIsRefused) {
  fakes::ExpectEveryMethodRefusesTooManyFields(server_->address(), *Request::descriptor()->file()->service(0));
}

}  // namespace
}  // namespace swiftcache
