#include "fs/open/write_errors.h"

#include <fmt/chrono.h>

#include <ctime>
#include <utility>

#include "io/log.h"

namespace ckptfs::fs {

void WriteErrors::failed(meta::InodeNumber inode, WriteFailure what, const Error& error) {
  add(counters_.write_errors[static_cast<size_t>(what)]);
  const char* const operation = kWriteNames[static_cast<size_t>(what)];
  const std::string path = tree_.path_of(inode);
  const std::time_t now = std::time(nullptr);
  const std::string text = fmt::format("{:%Y-%m-%d %H:%M:%S} {}: {}", fmt::localtime(now), operation, error.message());
  if (record(inode, error.errno_value(), text)) {
    log::error("{} of {} failed: {}", operation, path, error.message());
  }
}

bool WriteErrors::record(meta::InodeNumber inode, int errno_value, std::string text) {
  const io::MutexLock lock(mutex_);
  const auto [entry, inserted] = entries_.try_emplace(inode);
  const bool news = inserted || entry->second.errno_value != errno_value;
  entry->second = {errno_value, std::move(text)};
  if (inserted) {
    order_.push_back(inode);
    while (order_.size() > kMaximum) {
      if (order_.front() != inode) entries_.erase(order_.front());
      order_.pop_front();
    }
  }
  return news;
}

std::optional<std::string> WriteErrors::last(meta::InodeNumber inode) const {
  const io::MutexLock lock(mutex_);
  const auto entry = entries_.find(inode);
  if (entry == entries_.end()) return std::nullopt;
  return entry->second.text;
}

void WriteErrors::clear(meta::InodeNumber inode) {
  const io::MutexLock lock(mutex_);
  entries_.erase(inode);
}

}  // namespace ckptfs::fs
