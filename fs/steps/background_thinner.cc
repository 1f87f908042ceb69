#include "fs/steps/background_thinner.h"

#include <cerrno>

#include "io/log.h"

namespace ckptfs::fs {
namespace {

constexpr int kShare = 20;  // while somebody writes, one part in so many of the time is spent
constexpr std::chrono::seconds kStillWriting{10};
constexpr std::chrono::seconds kRetry{10};       // where somebody uses the step
constexpr std::chrono::minutes kRetryError{10};  // where the disk is full, or fails
constexpr size_t kMostRefusals = 65536;

}  // namespace

void BackgroundThinner::start() {
  thread_.start([this] { run(); }, io::BackgroundThread::Priority::low);
}

void BackgroundThinner::thin(ThinTask task) {
  const io::MutexLock lock(mutex_);
  if (task_) return;
  task_ = std::move(task);
  thread_.wake();
}

bool BackgroundThinner::is_busy() const {
  const io::MutexLock lock(mutex_);
  return task_.has_value();
}

std::string BackgroundThinner::refusal(meta::InodeNumber step, const io::Digest& fingerprint) const {
  const io::MutexLock lock(mutex_);
  const auto known = refusals_.find(step);
  if (known == refusals_.end() || known->second.fingerprint != fingerprint) return {};
  const bool over = known->second.until && *known->second.until <= Clock::now();
  return over ? std::string() : known->second.reason;
}

ThinningReport BackgroundThinner::report() const {
  const io::MutexLock lock(mutex_);
  return report_;
}

void BackgroundThinner::run() {
  while (!thread_.is_stopping()) {
    std::optional<ThinTask> task;
    {
      const io::MutexLock lock(mutex_);
      task = task_;
    }
    if (!task) {
      thread_.wait();
      continue;
    }
    const auto result =
        thinner_.thin(task->step, task->type, task->user, false, [this](auto worked) { return pause(worked); });
    note(*task, result);
    done_();
  }
}

void BackgroundThinner::note(const ThinTask& task, const Result<ThinReport>& result) {
  const int failed = result ? 0 : result.error().errno_value();
  const bool in_use = failed == EBUSY || failed == ENOENT || failed == ECANCELED;
  if (failed != 0 && !in_use) {
    log::warn("{} is not thinned: {}", store_.tree().path_of(task.step), result.error().message());
  }
  const io::MutexLock lock(mutex_);
  task_.reset();
  if (result) {
    ++report_.thinned;
    report_.freed += result.value().freed;
    refusals_.erase(task.step);
    return;
  }
  if (refusals_.size() >= kMostRefusals) refusals_.clear();
  Refusal refusal{task.fingerprint, result.error().message(), std::nullopt};
  if (in_use) {
    refusal.until = Clock::now() + kRetry;
  } else if (failed != EINVAL) {
    refusal.until = Clock::now() + kRetryError;
    ++report_.failures;
  }
  refusals_[task.step] = std::move(refusal);
}

bool BackgroundThinner::pause(std::chrono::nanoseconds worked) {
  const auto now = Clock::now();
  if (store_.open_files().writing()) written_ = now;
  const bool slow = written_ != Clock::time_point() && now - written_ < kStillWriting;
  return thread_.wait_for(slow ? worked * (kShare - 1) : std::chrono::nanoseconds(0));
}

}  // namespace ckptfs::fs
