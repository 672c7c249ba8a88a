// SPDX-License-Identifier: Apache-2.0
#include "services/ctl/table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"

namespace swiftcache::services::ctl {

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::Add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Line(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const {
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string padding(widths[i] - cells[i].size(), ' ');
    if (i > 0) line += "  ";
    line += columns_[i].side == kRight ? padding + cells[i] : cells[i] + padding;
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line + "\n";
}

std::string Table::ToString() const {
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  std::vector<size_t> widths;
  for (size_t i = 0; i < names.size(); ++i) {
    size_t width = names[i].size();
    for (const auto& row : rows_) width = std::max(width, row[i].size());
    widths.push_back(width);
  }
  std::string out = Line(names, widths);
  for (const auto& row : rows_) out += Line(row, widths);
  return out;
}

std::string ShowBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const bool whole = value == static_cast<double>(static_cast<int64_t>(value));
  return whole ? absl::StrFormat("%.0f %s", value, kUnits[unit]) : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

}  // namespace swiftcache::services::ctl
