#include "fs/steps/resume_watch.h"

#include "io/log.h"
#include "meta/care/neighbours.h"
#include "meta/names.h"

namespace ckptfs::fs {

using meta::Caller;
using meta::InodeNumber;

namespace {

constexpr size_t kMostThreads = 4096;
constexpr size_t kMostTold = 4096;
constexpr size_t kMostShown = 16;

enum class Kind { other, model, optimizer, swap_file };

Kind kind_of(const std::string& name) {
  if (name.ends_with("_model_states.pt")) return Kind::model;
  if (name.ends_with("_optim_states.pt")) return Kind::optimizer;
  return meta::is_swap_file_name(name) ? Kind::swap_file : Kind::other;
}

}  // namespace

void ResumeWatch::opened(const Caller& reader, InodeNumber inode, const meta::InodeRecord& record,
                         const std::string& name) {
  const Kind kind = kind_of(name);
  if (kind == Kind::other || reader.pid == 0 || (record.flags & meta::kSwap) != 0) return;
  const auto place = meta::place_of(tree_, inode);
  if (!place || !place.value()) return;
  const auto& path = place.value()->path;  // ".../offloaded_tensors/rank00/NAME"
  if (kind == Kind::swap_file && (path.size() < 3 || path[path.size() - 3] != meta::kTensorsName)) return;
  const io::MutexLock lock(mutex_);
  if (readings_.size() >= kMostThreads && !readings_.contains(reader.pid)) readings_.clear();
  Reading& reading = readings_[reader.pid];
  if (reading.step != place.value()->step) {
    reading = Reading();
    reading.step = place.value()->step;
  }
  if (kind == Kind::model) reading.model = true;
  if (kind == Kind::optimizer) reading.optimizer = true;
  if (kind == Kind::swap_file) reading.swap_file = name;
}

void ResumeWatch::emptied(const Caller& writer, const std::string& name) {
  InodeNumber step = 0;
  {
    const io::MutexLock lock(mutex_);
    const auto found = readings_.find(writer.pid);
    if (found == readings_.end()) return;
    const Reading& reading = found->second;
    if (!reading.model || reading.optimizer || reading.swap_file != name) return;
    step = reading.step;
    if (told_.size() >= kMostTold) told_.clear();
    if (!told_.insert(step).second) return;
  }
  tell(step);
}

void ResumeWatch::tell(InodeNumber step) {
  const std::string path = tree_.path_of(step);
  log::warn(
      "{}: a run has resumed from it by DeepSpeed's own load_checkpoint, which begins the optimizer anew. To lose "
      "nothing, start the run again by `python -m ckptfs.patch`",
      path);
  ++count_;
  const io::MutexLock lock(mutex_);
  if (lossy_.size() >= kMostShown) lossy_.erase(lossy_.begin());
  lossy_.push_back(path);
}

std::vector<std::string> ResumeWatch::lossy() const {
  const io::MutexLock lock(mutex_);
  return lossy_;
}

}  // namespace ckptfs::fs
