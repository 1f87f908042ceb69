// The files of a series in which trainers write which step they resume from. Stateless.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>

#include "meta/tree/tree.h"

namespace ckptfs::fs {

// DeepSpeed's, its universal checkpoint's, Megatron's.
inline constexpr std::array kTrackers{"latest", "latest_universal", "latest_checkpointed_iteration.txt"};

// What they name: steps by their names, or by their numbers.
struct Latest {
  std::set<std::string> named;
  std::map<std::string, std::string> unread;  // the files that nobody can read: why
  bool names(const std::string& tag) const;
  bool operator==(const Latest&) const = default;
};
Latest latest_of(const meta::Tree& tree, meta::InodeNumber series);

}  // namespace ckptfs::fs
