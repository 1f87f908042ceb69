#include "fs/remote_mount/step_files.h"

#include <algorithm>
#include <cerrno>

#include "fs/remote_mount/places.h"
#include "io/printable.h"

namespace ckptfs::fs::remote_mount {

using meta::remote::UnionEntry;

std::string_view name_in(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

Result<StepFiles> StepFiles::make(const meta::remote::RemoteStep& step, meta::remote::Union files) {
  StepFiles made(std::move(files));
  const std::vector<UnionEntry>& entries = made.files_.entries;
  if (entries.size() > kMostIndex) return Error(EOVERFLOW, "the step has too many files");
  made.parents_.resize(entries.size());
  made.memory_ = entries.size() * (sizeof(UnionEntry) + sizeof(uint32_t) + sizeof(made.children_[0]));
  for (uint32_t index = 1; index < entries.size(); ++index) {
    const std::string_view path = entries[index].path;
    made.memory_ += path.size();
    const size_t slash = path.rfind('/');
    const auto folder = made.find(slash == std::string_view::npos ? std::string_view() : path.substr(0, slash));
    if (!folder || step.entry(entries[*folder]).kind != meta::remote::Entry::Kind::folder) {
      return Error(EBADMSG, io::printable(path) + ": it lies in no folder of the step");
    }
    made.parents_[index] = *folder;
    made.children_.emplace_back(*folder, index);
  }
  std::ranges::sort(made.children_);
  return made;
}

std::optional<uint32_t> StepFiles::find(std::string_view path) const {
  const auto found = std::ranges::lower_bound(files_.entries, path, {},
                                              [](const UnionEntry& one) { return std::string_view(one.path); });
  if (found == files_.entries.end() || found->path != path) return std::nullopt;
  return static_cast<uint32_t>(found - files_.entries.begin());
}

std::optional<uint32_t> StepFiles::child(uint32_t folder, std::string_view name) const {
  const std::string& above = files_.entries[folder].path;
  return find(above.empty() ? std::string(name) : above + "/" + std::string(name));
}

std::vector<uint32_t> StepFiles::children(uint32_t folder) const {
  std::vector<uint32_t> found;
  for (auto at = std::ranges::lower_bound(children_, std::pair(folder, uint32_t{0}));
       at != children_.end() && at->first == folder; ++at) {
    found.push_back(at->second);
  }
  return found;
}

}  // namespace ckptfs::fs::remote_mount
