#include "fs/adopt/source_predictor.h"

#include <sys/stat.h>

#include <algorithm>

#include "fs/open/permission.h"
#include "meta/care/neighbours.h"
#include "meta/names.h"

namespace ckptfs::fs {

using meta::Caller;
using meta::InodeNumber;

void SourcePredictor::opened(const Caller& reader, InodeNumber inode) {
  const io::MutexLock lock(mutex_);
  reading_[reader.pid].push_back({inode, reader.uid});
}

void SourcePredictor::closed(pid_t thread, InodeNumber inode) {
  const io::MutexLock lock(mutex_);
  const auto at = reading_.find(thread);
  if (at == reading_.end()) return;
  std::vector<Reading>& files = at->second;
  const auto last =
      std::find_if(files.rbegin(), files.rend(), [&](const Reading& file) { return file.inode == inode; });
  if (last != files.rend()) files.erase(std::next(last).base());
  if (files.empty()) reading_.erase(at);
}

void SourcePredictor::judge(const std::string& name, By by, bool right) {
  if (by == By::names_lacking) return;  // such a name says nothing
  (by == By::reader ? readers_ : steps_).learn(name, right);
}

SourcePredictor::Prediction SourcePredictor::predict(InodeNumber folder, const std::string& name,
                                                     const Caller& writer) {
  const auto reading = writer.pid != 0 ? find_reading(writer, name) : std::nullopt;
  if (reading && !may_be_shared(*reading, writer)) return {};
  if (reading && readers_.ask(name)) return {{*reading}, By::reader};
  // The back-off comes first. During a pause, finding the step before would cost each small file more than its data.
  if (!steps_.ask(name)) return {};
  const auto before = previous_folder(folder, writer);
  if (!before) return {};
  const auto same = tree_.child(*before, name);
  if (!same) return {lacking(folder, *before, writer), By::names_lacking};
  if (!may_read(same.value(), writer)) return {};
  return {{same.value()}, By::step};
}

// Of the files with this name that the writer's thread has open for reading, the one that it opened last.
std::optional<InodeNumber> SourcePredictor::find_reading(const Caller& writer, const std::string& name) const {
  std::vector<Reading> files;
  {
    const io::MutexLock lock(mutex_);
    const auto reading = reading_.find(writer.pid);
    if (reading == reading_.end()) return std::nullopt;
    files = reading->second;
  }
  const auto found = std::find_if(files.rbegin(), files.rend(), [&](const Reading& file) {
    return file.uid == writer.uid && name_of_(file.inode) == name;
  });
  if (found == files.rend()) return std::nullopt;
  return found->inode;
}

// The files in `before` whose names `folder` lacks, of those that the writer may read.
std::vector<InodeNumber> SourcePredictor::lacking(InodeNumber folder, InodeNumber before, const Caller& writer) const {
  std::vector<InodeNumber> found;
  const auto entries = tree_.list(before);
  if (!entries) return found;
  for (const meta::DirectoryEntry& entry : entries.value()) {
    if (!S_ISREG(entry.type) || tree_.child(folder, entry.name) || !may_read(entry.inode, writer)) continue;
    found.push_back(entry.inode);
    if (found.size() == kMostCandidates) break;
  }
  return found;
}

bool SourcePredictor::may_be_shared(InodeNumber inode, const Caller& reader) const {
  const auto record = tree_.inode(inode);
  const bool swap = record && (record.value().flags & meta::kSwap) != 0;
  return !swap || may_share({reader.uid, reader.gid, {}}, record.value());
}

bool SourcePredictor::may_read(InodeNumber inode, const Caller& reader) const {
  const auto record = tree_.inode(inode);
  return record && record.value().is_regular() && may_access({reader.uid, reader.gid, {}}, record.value(), kRead);
}

// `folder` lies in a step, or is one. Returns the folder at the same place in the step before, if the writer may enter
// it.
std::optional<InodeNumber> SourcePredictor::previous_folder(InodeNumber folder, const Caller& writer) const {
  const auto place = meta::place_of(tree_, folder);
  if (!place || !place.value()) return std::nullopt;
  const auto& [series, step, path] = *place.value();
  auto at = step_before(series, step);
  if (!at) return std::nullopt;
  // Walk down the same path, through folders that the writer may enter.
  const Credentials credentials{writer.uid, writer.gid, {}};
  const auto may_enter = [&](InodeNumber number) {
    const auto record = tree_.inode(number);
    return record && record.value().is_dir() && may_access(credentials, record.value(), kSearch);
  };
  for (const std::string& name : path) {
    if (!may_enter(*at)) return std::nullopt;
    if (const auto next = tree_.child(*at, name)) {
      at = next.value();
    } else {
      // In a Trainer's checkpoint-N lies DeepSpeed's global_stepN, whose number is another one in each step.
      const auto inside = meta::step_number(name) ? tree_.list(*at) : Error(ENOENT);
      at = inside ? meta::last_made_before(inside.value(), UINT64_MAX, true) : std::nullopt;
      if (!at) return std::nullopt;
    }
  }
  return may_enter(*at) ? at : std::nullopt;
}

std::optional<InodeNumber> SourcePredictor::remembered_before(InodeNumber step) const {
  const io::MutexLock lock(mutex_);
  const auto known = before_.find(step);
  return known == before_.end() ? std::nullopt : std::optional(known->second);
}

// The answer is cached: to list a series from which many steps were removed takes a millisecond, and each file of a
// step asks.
std::optional<InodeNumber> SourcePredictor::step_before(InodeNumber series, InodeNumber step) const {
  if (const auto known = remembered_before(step)) {
    if (*known == 0) return std::nullopt;
    const auto record = tree_.inode(*known);
    const bool stands = record && record.value().nlink > 0 && record.value().parent == series;
    if (stands) return known;
  }
  const bool numbered = meta::step_number(name_of_(step)).has_value();
  const auto entries = tree_.list(series);
  if (!entries) return std::nullopt;
  auto found = meta::last_made_before(entries.value(), step, numbered);
  if (!found) found = meta::last_made_before(entries.value(), step, !numbered);
  const io::MutexLock lock(mutex_);
  if (before_.size() >= kMostSteps) before_.clear();
  before_[step] = found.value_or(0);
  return found;
}

}  // namespace ckptfs::fs
