// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/reflection_door.h"

#include <google/protobuf/descriptor.pb.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace swiftcache {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using Request = ReflectionDoor::Request;
using Response = ReflectionDoor::Response;

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

void AnswerError(grpc::StatusCode code, std::string message, Response& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(std::move(message));
}

void NotFound(const std::string& what, Response& response) {
  AnswerError(grpc::StatusCode::NOT_FOUND, absl::StrCat("no ", what, " here; list_services says what there is"),
              response);
}

void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>& added, Response& response) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), added, response);
}

void AnswerFile(const FileDescriptor* file, const std::string& what, Response& response) {
  if (file == nullptr) return NotFound(what, response);
  std::set<const FileDescriptor*> added;
  AddFile(*file, added, response);
}

const FileDescriptor* FileOfExtension(const grpc::reflection::v1alpha::ExtensionRequest& wanted) {
  const Descriptor* type = Pool().FindMessageTypeByName(wanted.containing_type());
  const FieldDescriptor* field =
      type == nullptr ? nullptr : Pool().FindExtensionByNumber(type, wanted.extension_number());
  return field == nullptr ? nullptr : field->file();
}

void AnswerExtensionNumbers(const std::string& type_name, Response& response) {
  const Descriptor* type = Pool().FindMessageTypeByName(type_name);
  if (type == nullptr) return NotFound(absl::StrCat("message '", type_name, "'"), response);
  std::vector<const FieldDescriptor*> extensions;
  Pool().FindAllExtensions(type, &extensions);
  auto* numbers = response.mutable_all_extension_numbers_response();
  numbers->set_base_type_name(type_name);
  for (const FieldDescriptor* extension : extensions) numbers->add_extension_number(extension->number());
}

void Answer(const Request& request, const std::vector<std::string>& services, Response& response) {
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      return AnswerFile(Pool().FindFileByName(request.file_by_filename()),
                        absl::StrCat("file '", request.file_by_filename(), "'"), response);
    case Request::kFileContainingSymbol:
      return AnswerFile(Pool().FindFileContainingSymbol(request.file_containing_symbol()),
                        absl::StrCat("symbol '", request.file_containing_symbol(), "'"), response);
    case Request::kFileContainingExtension:
      return AnswerFile(FileOfExtension(request.file_containing_extension()), "such extension", response);
    case Request::kAllExtensionNumbersOfType:
      return AnswerExtensionNumbers(request.all_extension_numbers_of_type(), response);
    case Request::kListServices:
      response.mutable_list_services_response();
      for (const std::string& name : services) response.mutable_list_services_response()->add_service()->set_name(name);
      return;
    case Request::MESSAGE_REQUEST_NOT_SET:
      AnswerError(grpc::StatusCode::UNIMPLEMENTED, "the request has none of the fields 3 to 7: wanted one of them",
                  response);
  }
}

absl::Status CheckSize(size_t bytes) {
  if (bytes <= ReflectionDoor::kMaxRequestBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the request has ", bytes, " bytes; wants at most ",
                                                 ReflectionDoor::kMaxRequestBytes, ": no name is so long"));
}

/// Reads a request, writes its answer, and so on; gRPC calls one of these at a time.
class ReflectionStream final : public grpc::ServerBidiReactor<Counted<Request>, Response> {
 public:
  ReflectionStream(const std::vector<std::string>& services, std::atomic<int>& calls)
      : services_(services), calls_(calls) {
    if (++calls_ <= ReflectionDoor::kMaxCalls) {
      StartRead(&request_);
    } else {
      Refuse(absl::ResourceExhaustedError(absl::StrCat("more than ", ReflectionDoor::kMaxCalls,
                                                       " calls ask for reflection; try again when some have ended")));
    }
  }
  ~ReflectionStream() override { --calls_; }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (!request_.status.ok()) return Refuse(request_.status);
    if (const absl::Status status = CheckSize(request_.message.ByteSizeLong()); !status.ok()) return Refuse(status);
    response_.set_valid_host(request_.message.host());
    Answer(request_.message, services_, response_);
    response_.mutable_original_request()->Swap(&request_.message);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    Response().Swap(&response_);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  void Refuse(const absl::Status& why) { Finish(ToGrpc(why)); }

  const std::vector<std::string>& services_;
  std::atomic<int>& calls_;
  Counted<Request> request_;
  Response response_;
};

}  // namespace

ReflectionDoor::ReflectionDoor() { Count("ServerReflectionInfo", &ReflectionDoor::Open); }

grpc::ServerBidiReactor<Counted<Request>, Response>* ReflectionDoor::Open(grpc::CallbackServerContext*) {
  return new ReflectionStream(services_, calls_);
}

}  // namespace swiftcache
