#include "io/objects/retrying_store.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace ckptfs::io {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kFirstPause{50}, kLongestPause{10'000}, kLook{200};

// A random half to whole of 50 ms, 100 ms, 200 ms, ...
std::chrono::milliseconds pause_after(int tries) {
  thread_local std::minstd_rand dice{std::random_device{}()};
  const auto longest = std::min(kLongestPause, kFirstPause * (1 << std::min(tries - 1, 10)));
  return std::chrono::milliseconds(std::uniform_int_distribution<int64_t>(longest.count() / 2, longest.count())(dice));
}

// False: it was stopped, or the deadline comes first.
bool pauses(std::chrono::milliseconds time, const RequestLimits& limits) {
  const auto end = Clock::now() + time;
  if (end >= limits.deadline) return false;
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    if (limits.is_stopped()) return false;
    std::this_thread::sleep_for(std::min<Clock::duration>(kLook, end - now));
  }
  return true;
}

// An object that is there, or is not, tells nothing of the store.
bool is_trouble(const Error& error) {
  return error.errno_value() != ECANCELED && error.errno_value() != EEXIST && error.errno_value() != ENOENT;
}

// The content, whose last read is noted. Both must outlive it.
ObjectContent watch(const ObjectContent& content, Result<>& read) {
  return {content.size, [&](uint64_t offset, std::span<std::byte> buffer) -> Result<> {
            read = content.read(offset, buffer);
            return read;
          }};
}

Error with_tries(const Error& error, int tries) {
  if (tries == 1 || error.errno_value() == ECANCELED) return error;
  return Error(error.errno_value(), error.message() + " (tried " + std::to_string(tries) + " times)");
}

}  // namespace

bool RetryingStore::may_pass(const Error& error, Missing missing) const {
  if (missing != Missing::passes && error.errno_value() == ENOENT) return false;
  if (missing == Missing::as_refused && error.errno_value() == EACCES) return false;
  return can_pass(error) || (error.errno_value() == EACCES && has_worked_.load(std::memory_order_relaxed));
}

template <class Attempt>
auto RetryingStore::again_and_again(const RequestLimits& limits, Attempt&& attempt, Missing missing)
    -> decltype(attempt(0)) {
  for (int tries = 1;; ++tries) {
    const auto begun = Clock::now();
    auto done = attempt(tries - 1);
    if (done) {
      has_worked_.store(true, std::memory_order_relaxed);
      store_->counts().note_success();
    } else if (is_trouble(done.error())) {
      store_->counts().note_failure(done.error(), begun);
    }
    if (done || !may_pass(done.error(), missing) || !pauses(pause_after(tries), limits)) {
      if (!done && limits.is_stopped()) return Error(ECANCELED);
      if (!done) return with_tries(done.error(), tries);
      return done;
    }
    ++store_->counts().retries;
  }
}

Result<> RetryingStore::put(const std::string& key, const ObjectContent& content, PutMode mode,
                            const RequestLimits& limits) {
  Result<> read = success();
  const ObjectContent watched = watch(content, read);
  auto put = again_and_again(limits, [&](int before) -> Result<> {
    auto done = store_->put(key, watched, mode, limits);
    if (!read) return Error(ECANCELED);
    if (done || before == 0 || mode != PutMode::make || done.error().errno_value() != EEXIST) return done;
    const auto is_ours = holds(*store_, key, watched, limits);
    if (!read) return Error(ECANCELED);
    if (!is_ours) return is_ours.error();
    if (!is_ours.value()) return done;
    return success();
  });
  return read ? put : read;
}

Result<size_t> RetryingStore::get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                                  const RequestLimits& limits) {
  return again_and_again(limits, [&](int) { return store_->get(key, offset, buffer, limits); });
}

Result<ObjectPage> RetryingStore::list(const std::string& prefix, const std::string& token,
                                       const RequestLimits& limits) {
  return again_and_again(limits, [&](int) { return store_->list(prefix, token, limits); });
}

Result<> RetryingStore::remove(const std::string& key, const RequestLimits& limits) {
  return again_and_again(limits, [&](int) { return store_->remove(key, limits); });
}

Result<> RetryingStore::find_check(const std::string& key, const RequestLimits& limits) {
  return again_and_again(limits, [&](int) { return store_->find_check(key, limits); });
}

Result<> RetryingStore::copy(const std::string& from, const std::string& to, uint64_t size,
                             const RequestLimits& limits) {
  return again_and_again(
      limits, [&](int) { return store_->copy(from, to, size, limits); }, Missing::is_final);
}

Result<Upload> RetryingStore::begin_upload(const std::string& key, const RequestLimits& limits) {
  return again_and_again(limits, [&](int) { return store_->begin_upload(key, limits); });
}

Result<std::string> RetryingStore::put_piece(const Upload& upload, uint32_t number, uint64_t offset,
                                             const ObjectContent& content, const RequestLimits& limits) {
  Result<> read = success();
  const ObjectContent watched = watch(content, read);
  auto put = again_and_again(
      limits,
      [&](int) -> Result<std::string> {
        auto done = store_->put_piece(upload, number, offset, watched, limits);
        if (!read) return Error(ECANCELED);
        return done;
      },
      Missing::is_final);
  if (!read) return read.error();
  return put;
}

Result<> RetryingStore::complete_upload(const Upload& upload, uint64_t size, const std::vector<std::string>& pieces,
                                        const RequestLimits& limits) {
  return again_and_again(
      limits, [&](int) { return store_->complete_upload(upload, size, pieces, limits); }, Missing::is_final);
}

Result<uint64_t> RetryingStore::end_uploads(std::chrono::seconds older_than, const RequestLimits& limits) {
  return again_and_again(limits, [&](int) { return store_->end_uploads(older_than, limits); });
}

Result<uint64_t> RetryingStore::remove_empty_folders(const std::string& prefix, std::chrono::seconds older_than,
                                                     const RequestLimits& limits) {
  return again_and_again(limits, [&](int) { return store_->remove_empty_folders(prefix, older_than, limits); });
}

}  // namespace ckptfs::io
