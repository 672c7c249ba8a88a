// SPDX-License-Identifier: Apache-2.0
// Sends wire bytes to gRPC's methods, as a client that knows nothing of our build would.
//
//   EXPECT_EQ(fakes::SendBytes(server->address(), "/swiftcache.v1.BrokerService/Heartbeat", "\x0a\x7f").error_code(),
//             grpc::StatusCode::INVALID_ARGUMENT);
#pragma once

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"

namespace swiftcache::fakes {

/// The status of one call with one message, after a minute at the latest; `response` gets the answer.
inline grpc::Status SendBytes(const std::string& address, const std::string& method, const std::string& bytes,
                              grpc::ByteBuffer* response = nullptr,
                              grpc_compression_algorithm how = GRPC_COMPRESS_NONE) {
  grpc::GenericStub stub(CreateRpcChannel(address, {}));
  grpc::ClientContext context;
  SetTimeout(context, absl::Minutes(1));
  context.set_wait_for_ready(true);
  context.set_compression_algorithm(how);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer unread;
  absl::Notification done;
  grpc::Status status;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, response == nullptr ? &unread : response,
                 [&](grpc::Status answered) {
                   status = std::move(answered);
                   done.Notify();
                 });
  done.WaitForNotification();
  return status;
}

/// Sends `bytes` of a field that no message has: a number of two bytes, again and again.
inline void ExpectEveryMethodRefusesTooManyFields(const std::string& address,
                                                  const google::protobuf::ServiceDescriptor& service,
                                                  size_t bytes = 1 << 20) {
  std::string fields;
  while (fields.size() < bytes) fields += "\xf8\x01\x01";  // field 31
  for (int i = 0; i < service.method_count(); ++i) {
    const std::string method = absl::StrCat("/", service.full_name(), "/", service.method(i)->name());
    const grpc::Status status = SendBytes(address, method, fields);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr("more than 131072 fields")) << method;
  }
}

}  // namespace swiftcache::fakes
