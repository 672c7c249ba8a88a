// SPDX-License-Identifier: Apache-2.0
#include "common/log/log.h"

#include "absl/strings/escaping.h"

namespace swiftcache {
namespace {

struct Identity {
  std::string engine, model;
};

// Written by InitLogging and NameEngine before any other thread logs, read-only afterwards. glog itself is a
// process-wide thing.
Identity& ProcessIdentity() {
  static Identity identity;
  return identity;
}

void Part(std::ostream& out, const char* key, std::string_view value) {
  if (!value.empty()) out << key << '=' << absl::CHexEscape(absl::string_view(value.data(), value.size())) << ' ';
}

}  // namespace

void InitLogging(const LogOptions& options) {
  ProcessIdentity() = {options.engine, options.model};
  FLAGS_logtostderr = true;
  FLAGS_v = options.verbose ? 1 : 0;
  static const std::string program = options.program;  // glog keeps the pointer
  google::InitGoogleLogging(program.c_str());
}

void NameEngine(const std::string& engine) { ProcessIdentity().engine = engine; }

std::ostream& operator<<(std::ostream& out, const RequestTag& tag) {
  Part(out, "request_id", tag.request_id);
  Part(out, "trace", tag.traceparent);
  Part(out, "engine", ProcessIdentity().engine);
  Part(out, "model", tag.model.empty() ? std::string_view(ProcessIdentity().model) : tag.model);
  return out;
}

}  // namespace swiftcache
