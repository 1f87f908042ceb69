#include "fs/base/tasks.h"

#include <system_error>

namespace ckptfs::fs {

Result<> Tasks::start(std::function<void()> work) {
  const io::MutexLock lock(mutex_);
  std::erase_if(tasks_, [](Task& task) {
    if (!task.ended.load(std::memory_order_acquire)) return false;
    task.thread.join();
    return true;
  });
  Task& task = tasks_.emplace_back();
  try {
    task.thread = std::thread([&task, work = std::move(work)] {
      work();
      task.ended.store(true, std::memory_order_release);
    });
  } catch (const std::system_error& error) {
    tasks_.pop_back();
    return Error(EAGAIN, std::string("no thread for this operation: ") + error.what());
  }
  return success();
}

void Tasks::wait() {
  for (;;) {
    std::list<Task> tasks;
    {
      const io::MutexLock lock(mutex_);
      tasks.swap(tasks_);
    }
    if (tasks.empty()) return;
    for (Task& task : tasks) task.thread.join();
  }
}

}  // namespace ckptfs::fs
