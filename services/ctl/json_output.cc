// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/json_output.h"

#include <google/protobuf/util/json_util.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "absl/strings/str_cat.h"

namespace swiftcache::services::ctl {

std::shared_ptr<std::string> AddOutputFlag(CLI::App& command) {
  auto output = std::make_shared<std::string>(kTable);  // shared by the parser and the command
  command.add_option("-o,--output", *output, "table, or json: one document on one line")
      ->check(CLI::IsMember({kTable, kJson}))
      ->capture_default_str();
  return output;
}

absl::Status PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(absl::StrCat("JSON: ", std::string(status.message())));
  std::cout << json << std::endl;
  return absl::OkStatus();
}

}  // namespace swiftcache::services::ctl
