// SPDX-License-Identifier: Apache-2.0
// A process's flags: each is also an environment variable, has a checked range, and fails with one line that names flag,
// value found, value wanted and remedy. The command line wins over SWIFTCACHE_<PROGRAM>_<FLAG>, of one program alone
// (SWIFTCACHE_ENGINE_LISTEN), and that over SWIFTCACHE_<FLAG>; an empty variable says nothing, and one of this program
// that is none of its flags is a mistake; of SWIFTCACHE_... one that is nearly a flag is told of. --max-tokens is
// --max_tokens.
//
//   Flags flags("swiftcache-broker", "Knows which engines are there.");
//   flags.Address("listen", &options.listen, "gRPC address");
//   flags.Duration("heartbeat_interval", &interval, absl::Milliseconds(10), absl::Hours(1), "between two reports");
//   if (std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace swiftcache::services {

/// Thread-safety: none. Ownership: borrows the variables, which hold the defaults beforehand and the values after
/// Parse. Errors: Parse prints them. Ranges include both ends.
class Flags {
 public:
  Flags(const std::string& program, const std::string& description);
  ~Flags();

  void Text(const std::string& name, std::string* value, const std::string& help);
  /// Up to 128 letters, digits and punctuation that is safe in labels and logs, as the broker wants it; "" keeps the
  /// default.
  void Name(const std::string& name, std::string* value, const std::string& help);
  void Required(const std::string& name, std::string* value, const std::string& help);
  void Choice(const std::string& name, std::string* value, std::vector<std::string> choices, const std::string& help);
  /// host:port; `may_be_empty`: "" says that there is none.
  void Address(const std::string& name, std::string* value, const std::string& help, bool may_be_empty = false);
  void Integer(const std::string& name, int64_t* value, int64_t min, int64_t max, const std::string& help);
  void Bytes(const std::string& name, int64_t* value, int64_t min, int64_t max, const std::string& help);
  /// Stays empty where nothing is said.
  void Bytes(const std::string& name, std::optional<int64_t>* value, int64_t min, int64_t max, const std::string& help);
  /// Above 0, at most 1.
  void Fraction(const std::string& name, double* value, const std::string& help);
  void Duration(const std::string& name, absl::Duration* value, absl::Duration min, absl::Duration max,
                const std::string& help);
  /// --name, --name=true, --name=false.
  void Switch(const std::string& name, bool* value, const std::string& help);

  /// An exit code if the process has to end now: 0 after --help and --version, 2 after one line on standard error.
  std::optional<int> Parse(int argc, const char* const* argv);
  /// What is not as by default, wherever it was said: "kv_cache_bytes=16MiB listen=[::1]:0". Equal where the values are.
  /// Of no meaning where Parse has failed.
  std::string Changed() const;

 private:
  using Setter = std::function<absl::Status(const std::string&)>;
  using Getter = std::function<std::string()>;
  struct Setting {
    std::string name, by_default;
    Getter show;
  };
  CLI::Option* Add(const std::string& name, Getter show, const std::string& help, Setter set);
  int Complain(const CLI::ParseError& error) const;
  std::vector<std::string> Names(const std::string& prefix) const;
  bool CheckVariables() const;

  const std::string program_;
  const std::unique_ptr<CLI::App> app_;
  std::vector<Setting> settings_;
  std::vector<std::pair<CLI::Option*, std::string>> switches_;  // with their defaults
};

/// A program's arguments as CLI::App::parse wants them: the last first, without the program's name. --max-tokens is
/// --max_tokens, and --name= is --name with the value "", where CLI11 would take the next argument for its value.
std::vector<std::string> ParserArguments(int argc, const char* const* argv);

}  // namespace swiftcache::services
