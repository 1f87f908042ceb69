#include "meta/index/ballast.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "io/fd.h"
#include "io/log.h"

namespace ckptfs::meta {
namespace {

constexpr uint64_t kForAnyChange = uint64_t{48} << 20;
constexpr uint64_t kForRemovals = uint64_t{16} << 20;
constexpr uint64_t kEnough = 4;                  // the part for any change is made if so many times its size is free
constexpr uint64_t kBeside = uint64_t{4} << 20;  // must stay free beside the part for removals

constexpr uint64_t size_of(Ballast::Part part) {
  return part == Ballast::Part::removals ? kForRemovals : kForAnyChange;
}

}  // namespace

Ballast::Ballast(std::string folder)
    : folder_(std::move(folder)),
      has_any_change_(::access(path_of(Part::any_change).c_str(), F_OK) == 0),
      has_removals_(::access(path_of(Part::removals).c_str(), F_OK) == 0) {}

std::string Ballast::path_of(Part part) const {
  return folder_ + (part == Part::removals ? "/ballast.removals" : "/ballast");
}

uint64_t Ballast::bytes() const {
  const io::MutexLock lock(mutex_);
  return (has_any_change_ ? kForAnyChange : 0) + (has_removals_ ? kForRemovals : 0);
}

bool Ballast::has(Part part) const {
  const io::MutexLock lock(mutex_);
  return part == Part::removals ? has_removals_ : has_any_change_;
}

Result<> Ballast::spend_on(const std::function<Result<>()>& attempt) {
  auto done = attempt();
  for (const Part part : {Part::any_change, Part::removals}) {
    if (!done && done.error().errno_value() == ENOSPC && release(part)) done = attempt();
  }
  return done;
}

bool Ballast::release(Part part) {
  const io::MutexLock lock(mutex_);
  bool& present = part == Part::removals ? has_removals_ : has_any_change_;
  if (!present) return false;
  if (::unlink(path_of(part).c_str()) != 0) {
    log::error("the ballast cannot be released: {}", last_error(path_of(part)).message());
    return false;
  }
  present = false;
  log::warn("the store is full: released {} MiB of ballast for the index{}", size_of(part) >> 20,
            part == Part::removals ? ", the last" : "");
  return true;
}

void Ballast::restore(uint64_t free, uint64_t raw_free) {
  const io::MutexLock lock(mutex_);
  if (!has_removals_ && raw_free >= kForRemovals + kBeside) has_removals_ = make(Part::removals);
  if (!has_any_change_ && free >= kEnough * kForAnyChange) has_any_change_ = make(Part::any_change);
}

bool Ballast::make(Part part) const {
  const std::string path = path_of(part);
  auto made = io::open_at(AT_FDCWD, path, O_RDWR | O_CREAT);
  if (made && ::fallocate(made.value().get(), 0, 0, static_cast<off_t>(size_of(part))) != 0) {
    made = last_error(path);
    ::unlink(path.c_str());
  }
  if (!made) log::warn("no ballast: {}; removals on a full store may fail until there is room", made.error().message());
  return made.has_value();
}

}  // namespace ckptfs::meta
