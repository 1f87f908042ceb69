#include "meta/index/store_clock.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "io/boot.h"
#include "io/digest.h"

namespace ckptfs::meta {
namespace {

// Keys of the table `kv`.
constexpr const char* kClockKey = "clock";             // nanoseconds
constexpr const char* kClockBootKey = "clock_boot";    // the boot in which it was recorded: a digest of the boot's id
constexpr const char* kClockSinceKey = "clock_since";  // nanoseconds since that boot, when it was recorded

uint64_t as_number(const std::string& boot) {
  const io::Digest digest = io::digest_of(std::as_bytes(std::span(boot)));
  uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof(number));
  return number;
}

}  // namespace

Result<StoreClock> StoreClock::load(const Index& index) {
  TRY_ASSIGN(const std::string id, io::boot_id());
  const uint64_t boot = as_number(id);
  TRY_ASSIGN(const uint64_t known, index.number_or_zero(kClockKey));
  TRY_ASSIGN(const uint64_t known_boot, index.number_or_zero(kClockBootKey));
  TRY_ASSIGN(const uint64_t since, index.number_or_zero(kClockSinceKey));
  const std::chrono::nanoseconds at = io::since_boot();
  std::chrono::nanoseconds passed{};
  if (known_boot != 0) passed = at - std::chrono::nanoseconds(known_boot == boot ? since : 0);
  return StoreClock(StoreTime(known) + std::max(passed, std::chrono::nanoseconds(0)), at, boot);
}

StoreTime StoreClock::now() const { return known_ + std::max(io::since_boot() - at_, std::chrono::nanoseconds(0)); }

void StoreClock::put(Batch& batch) const {
  batch.allow_on_full_store();  // rotation, which makes room, does nothing without it
  const std::chrono::nanoseconds since = io::since_boot();
  batch.put_number(kClockKey,
                   static_cast<uint64_t>((known_ + std::max(since - at_, std::chrono::nanoseconds(0))).count()));
  batch.put_number(kClockBootKey, boot_);
  batch.put_number(kClockSinceKey, static_cast<uint64_t>(since.count()));
}

Result<> StoreClock::note(Index& index) const {
  Batch batch(index);
  put(batch);
  return index.commit(std::move(batch));
}

}  // namespace ckptfs::meta
