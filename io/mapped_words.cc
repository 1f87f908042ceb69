#include "io/mapped_words.h"

#include <sys/mman.h>

#include <atomic>
#include <utility>

#include "io/sigbus.h"

namespace ckptfs::io {

Result<MappedWords> MappedWords::map(int fd, off_t offset, size_t count) {
  void* const mapped = ::mmap(nullptr, count * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
  if (mapped == MAP_FAILED) return last_error("mapping a file");
  MappedWords words;
  words.words_ = static_cast<uint64_t*>(mapped);
  words.count_ = count;
  return words;
}

MappedWords::MappedWords(MappedWords&& other) noexcept
    : words_(std::exchange(other.words_, nullptr)), count_(other.count_) {}

MappedWords& MappedWords::operator=(MappedWords&& other) noexcept {
  std::swap(words_, other.words_);
  std::swap(count_, other.count_);
  return *this;
}

MappedWords::~MappedWords() {
  if (words_ != nullptr) ::munmap(words_, count_ * sizeof(uint64_t));
}

Result<> MappedWords::store(size_t index, uint64_t word) const {
  uint64_t* const at = words_ + index;
  // The order is made by a fence, not by the store: ThreadSanitizer holds a lock of its own while it does a store that
  // releases, and where a SIGBUS ends the store, nobody unlocks it.
  const bool stored = access_mapped([at, word] {
    std::atomic_thread_fence(std::memory_order_release);
    std::atomic_ref(*at).store(word, std::memory_order_relaxed);
  });
  if (stored) return success();
  return Error(EIO, "a page of a mapped file cannot be had");
}

}  // namespace ckptfs::io
