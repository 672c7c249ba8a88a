// SPDX-License-Identifier: Apache-2.0
#include "services/did_you_mean.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace swiftcache::services {
namespace {

constexpr size_t kMostLetters = 64;  // of a name: what is longer is none
constexpr size_t kMostTypos = 2, kLettersOfATypo = 3, kShortestBeginning = 3;

absl::string_view WithoutDashes(absl::string_view name) {
  return name.substr(std::min(name.size(), name.find_first_not_of('-')));
}

// Letters to insert, drop, change or swap with a neighbour, of a to get b (optimal string alignment).
size_t Typos(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> least(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        least[i][j] = i + j;
        continue;
      }
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      least[i][j] = std::min({least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
      }
    }
  }
  return least[a.size()][b.size()];
}

}  // namespace

std::string Nearest(const std::string& found, const std::vector<std::string>& known) {
  const absl::string_view name = WithoutDashes(found);
  if (name.size() > kMostLetters) return "";
  std::string nearest;
  size_t fewest = std::min(kMostTypos, name.size() / kLettersOfATypo) + 1;
  for (const std::string& each : known) {
    const size_t typos = Typos(name, WithoutDashes(each));
    if (typos < fewest) {
      fewest = typos;
      nearest = each;
    }
  }
  return nearest;
}

std::string DidYouMean(const std::string& found, const std::vector<std::string>& known) {
  std::string nearest = Nearest(found, known);
  const bool may_begin = nearest.empty() && WithoutDashes(found).size() >= kShortestBeginning;
  const auto begins_so = [&found](const std::string& each) { return absl::StartsWith(each, found); };
  const auto longer = may_begin ? std::find_if(known.begin(), known.end(), begins_so) : known.end();
  if (longer != known.end()) nearest = *longer;
  return nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)");
}

}  // namespace swiftcache::services
