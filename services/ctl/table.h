// SPDX-License-Identifier: Apache-2.0
// A table for people: columns as wide as their widest cell, numbers to the right.
//
//   Table table({{"ENGINE"}, {"BLOCKS", Table::kRight}});
//   table.Add({"chat", "1456"});
//   std::cout << table.ToString();
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace swiftcache::services::ctl {

/// Thread-safety: none. Errors: none; missing cells are empty.
class Table {
 public:
  enum Side { kLeft, kRight };
  struct Column {
    std::string name;
    Side side = kLeft;
  };
  explicit Table(std::vector<Column> columns);
  void Add(std::vector<std::string> cells);
  std::string ToString() const;

 private:
  std::string Line(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// 737280 as "720 KiB".
std::string ShowBytes(int64_t bytes);

}  // namespace swiftcache::services::ctl
