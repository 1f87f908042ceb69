#include "fs/write_errors.h"

namespace ckptfs::fs {

bool WriteErrors::record(meta::InodeNumber inode, int errno_value, std::string text) {
  const std::lock_guard lock(mutex_);
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
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(inode);
  if (entry == entries_.end()) return std::nullopt;
  return entry->second.text;
}

void WriteErrors::clear(meta::InodeNumber inode) {
  const std::lock_guard lock(mutex_);
  entries_.erase(inode);
}

}  // namespace ckptfs::fs
