// SPDX-License-Identifier: Apache-2.0
// A service that refuses requests of too many fields or numbers before they are parsed.
//
//   class GenerateDoor final : public CountedService<v1::GenerateService> {
//    public:
//     GenerateDoor() { Count("Tokenize", &GenerateDoor::Tokenize); }
//     grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
//                                        v1::TokenizeResponse* response) override;
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "common/rpc/field_count.h"
#include "common/rpc/status.h"

namespace swiftcache {

/// What gRPC makes of a request's bytes: a message, or why there is none.
template <typename Message>
struct Counted {
  absl::Status status;
  mutable Message message;  // of a stream: empty once it is answered, since gRPC keeps it for the life of the call
};

/// A call that is refused before it begins; deletes itself when it is over, as gRPC's reactors do.
template <typename Response>
class RefusedStream final : public grpc::ServerWriteReactor<Response> {
 public:
  explicit RefusedStream(const absl::Status& why) { this->Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

template <typename Door, typename Request, typename Response>
using UnaryMethod = grpc::ServerUnaryReactor* (Door::*)(grpc::CallbackServerContext*, const Request*, Response*);
template <typename Door, typename Request, typename Response>
using StreamMethod = grpc::ServerWriteReactor<Response>* (Door::*)(grpc::CallbackServerContext*, const Request*);

template <typename Door, typename Request, typename Response>
using BidiMethod = grpc::ServerBidiReactor<Counted<Request>, Response>* (Door::*)(grpc::CallbackServerContext*);

/// `Api` is a service that protoc generated. Thread-safety: Count in constructors alone. Ownership: gRPC owns handlers.
/// Errors: a call whose request CheckFieldCount refuses, or that cannot be parsed, ends with
/// INVALID_ARGUMENT, and the door never hears of it, but for a message of a client's stream.
template <typename Api>
class CountedService : public Api::CallbackService {
 protected:
  /// `answer`, of the class that derives from this one, answers the method `name` of the proto file. A method that is
  /// left out stays as Api::CallbackService has it: not counted. A request whose answer is a stream is read within
  /// `answer` alone.
  template <typename Door, typename Request, typename Response>
  void Count(const char* name, UnaryMethod<Door, Request, Response> answer) {
    Answer(name, new grpc::internal::CallbackUnaryHandler<Counted<Request>, Response>(
                     [this, answer](grpc::CallbackServerContext* context, const Counted<Request>* request,
                                    Response* response) -> grpc::ServerUnaryReactor* {
                       if (request->status.ok()) {
                         return (static_cast<Door*>(this)->*answer)(context, &request->message, response);
                       }
                       grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
                       reactor->Finish(ToGrpc(request->status));
                       return reactor;
                     }));
  }
  template <typename Door, typename Request, typename Response>
  void Count(const char* name, StreamMethod<Door, Request, Response> answer) {
    Answer(name, new grpc::internal::CallbackServerStreamingHandler<Counted<Request>, Response>(
                     [this, answer](grpc::CallbackServerContext* context,
                                    const Counted<Request>* request) -> grpc::ServerWriteReactor<Response>* {
                       if (!request->status.ok()) return new RefusedStream<Response>(request->status);
                       auto* reactor = (static_cast<Door*>(this)->*answer)(context, &request->message);
                       Request().Swap(&request->message);
                       return reactor;
                     }));
  }
  /// Of each message that the client sends the reactor gets what became of it.
  template <typename Door, typename Request, typename Response>
  void Count(const char* name, BidiMethod<Door, Request, Response> answer) {
    Answer(name, new grpc::internal::CallbackBidiHandler<Counted<Request>, Response>(
                     [this, answer](grpc::CallbackServerContext* context) {
                       return (static_cast<Door*>(this)->*answer)(context);
                     }));
  }

 private:
  // In the place of the handler that Api::CallbackService has set; owned by gRPC.
  void Answer(const char* name, grpc::internal::MethodHandler* handler) {
    const auto* pool = google::protobuf::DescriptorPool::generated_pool();
    this->MarkMethodCallback(pool->FindServiceByName(Api::service_full_name())->FindMethodByName(name)->index(),
                             handler);
  }
};

}  // namespace swiftcache

namespace grpc {

template <typename Message>
class SerializationTraits<swiftcache::Counted<Message>> {
 public:
  static Status Deserialize(ByteBuffer* bytes, swiftcache::Counted<Message>* counted) {
    counted->status = swiftcache::CheckFieldCount(*bytes, *Message::descriptor());
    if (counted->status.ok() && !SerializationTraits<Message>::Deserialize(bytes, &counted->message).ok()) {
      counted->status = absl::InvalidArgumentError(swiftcache::kCannotBeParsed);
    }
    bytes->Clear();
    return Status::OK;
  }
};

}  // namespace grpc
