#include "meta/formats/share_check.h"

#include <utility>

namespace ckptfs::meta::formats {

void ShareCheck::add_missing(MissingFile file) {
  if (missing.size() == kMostMissing) return add_unclear("it demands more files than are looked for");
  missing.push_back(std::move(file));
}

void ShareCheck::add_broken(const std::string& reason) {
  if (broken.empty()) broken = reason;
}

void ShareCheck::add_unclear(const std::string& reason) {
  if (unclear.empty()) unclear = reason;
}

}  // namespace ckptfs::meta::formats
