// The files of a series in which trainers write which step they resume from. Stateless.
#pragma once

#include <map>
#include <set>
#include <string>

#include "meta/steps/policy.h"
#include "meta/tree/tree.h"

namespace ckptfs::fs {

// What they name: steps by their names, or by their numbers.
struct Latest {
  std::set<std::string> named;
  std::map<std::string, std::string> unread;  // the files that nobody can read: why
  bool names(const std::string& tag) const;
  bool operator==(const Latest&) const = default;
};
// `only`: of this one of meta::kTrackers.
Latest latest_of(const meta::Tree& tree, meta::InodeNumber series, const std::string& only = {});

}  // namespace ckptfs::fs
