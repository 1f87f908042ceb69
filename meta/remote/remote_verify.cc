// verify_step().
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "io/mutex.h"
#include "io/parallel.h"
#include "io/printable.h"
#include "meta/remote/layout.h"
#include "meta/remote/remote_step.h"

namespace ckptfs::meta::remote {
namespace {

constexpr uint64_t kVerifiedAtOnce = uint64_t{16} << 20;
constexpr size_t kMostWrong = 1000;

// A run of chunks of one file.
struct VerifyJob {
  uint32_t slot = 0;
  size_t entry = 0;
  uint64_t offset = 0;
};

class Verifier {
 public:
  Verifier(const RemoteStep& step, double share, const ReadSettings& settings)
      : step_(step), share_(share), settings_(settings) {}

  Result<VerifyReport> run() {
    for (uint32_t slot = 0; slot < step_.slots(); ++slot) {
      TRY(find_objects(step_.part(slot)));
      choose(slot);
    }
    for (const VerifyJob& job : jobs_) total_ += bytes_of(job);
    TRY(io::for_each_parallel(jobs_.size(), settings_.parallel, [this](size_t i) { return verify(jobs_[i]); }));
    return take();
  }

 private:
  io::RequestLimits limits() const { return io::RequestLimits::within(settings_.time, settings_.stop); }
  const Entry& entry_of(const VerifyJob& job) const { return step_.part(job.slot).entries()[job.entry]; }
  uint64_t bytes_of(const VerifyJob& job) const { return std::min(kVerifiedAtOnce, entry_of(job).size - job.offset); }

  // Lists the objects of the part's push. Notes what is not there, or is of another length.
  Result<> find_objects(const Part& part) {
    const PartHeader& header = part.header();
    std::map<std::string, uint64_t> sizes;
    for (const Entry& entry : part.entries()) {
      if (entry.kind == Entry::Kind::file) sizes.emplace(header.key_of(entry), entry.size);
    }
    const std::string url = step_.store().url() + "/";
    const auto note = [&](const io::ObjectInfo& object) -> Result<> {
      const auto known = sizes.find(object.key);
      if (known == sizes.end()) return success();  // somebody else's
      if (known->second != object.size) {
        wrong(fmt::format("{}{}: it has {} bytes, and should have {}", url, io::printable(object.key), object.size,
                          known->second));
      }
      sizes.erase(known);
      return success();
    };
    TRY(io::for_each_object(step_.store(), header.push.folder(), note, limits()));
    for (const auto& [key, size] : sizes) {
      missing_.insert(key);
      wrong(url + io::printable(key) + ": it is not there");
    }
    return success();
  }

  // At least one run of each part.
  void choose(uint32_t slot) {
    std::vector<VerifyJob> all;
    const std::vector<Entry>& entries = step_.part(slot).entries();
    for (size_t entry = 0; entry < entries.size(); ++entry) {
      const bool is_file = entries[entry].kind == Entry::Kind::file;
      if (!is_file || missing_.contains(step_.part(slot).header().key_of(entries[entry]))) continue;
      for (uint64_t offset = 0; offset < entries[entry].size; offset += kVerifiedAtOnce) {
        all.push_back({slot, entry, offset});
      }
    }
    const double wanted = std::ceil(std::clamp(share_, 0.0, 1.0) * static_cast<double>(all.size()));
    const auto count = std::max<size_t>(static_cast<size_t>(wanted), 1);
    std::ranges::sample(all, std::back_inserter(jobs_), static_cast<std::ptrdiff_t>(count), dice_);
  }

  Result<> verify(const VerifyJob& job) {
    if (settings_.stop != nullptr && settings_.stop->load(std::memory_order_relaxed)) {
      return Error(ECANCELED, "the verification was stopped");
    }
    const Entry& entry = entry_of(job);
    const uint64_t size = bytes_of(job);
    const auto room = std::make_unique_for_overwrite<std::byte[]>(size);
    const std::span bytes(room.get(), size);
    const uint64_t chunks = (size + kChunkBytes - 1) / kChunkBytes;
    const UnionEntry file{entry.path, job.slot, job.entry};
    auto read = step_.read(file, job.offset, bytes, limits());
    if (!read && read.error().errno_value() != EBADMSG) return read;
    if (read) note_compared(chunks, size);
    for (uint64_t at = 0; at < chunks && !read; ++at) TRY(verify_chunk(file, job.offset + at * kChunkBytes, bytes));
    settings_.progress({total_, done_ += size, entry.path});
    return success();
  }
  Result<> verify_chunk(const UnionEntry& file, uint64_t offset, std::span<std::byte> room) {
    const uint64_t size = std::min(kChunkBytes, step_.entry(file).size - offset);
    auto read = step_.read(file, offset, room.first(size), limits());
    if (!read && read.error().errno_value() != EBADMSG) return read;
    note_compared(1, size);
    if (!read) wrong(read.error().message());
    return success();
  }

  void note_compared(uint64_t chunks, uint64_t bytes) {
    const io::MutexLock lock(mutex_);
    report_.chunks += chunks;
    report_.bytes += bytes;
  }
  void wrong(std::string words) {
    const io::MutexLock lock(mutex_);
    ++wrong_;
    if (report_.wrong.size() < kMostWrong) report_.wrong.push_back(std::move(words));
  }
  VerifyReport take() {
    const io::MutexLock lock(mutex_);
    if (wrong_ > kMostWrong) report_.wrong.push_back(fmt::format("and {} others", wrong_ - kMostWrong));
    return std::move(report_);
  }

  const RemoteStep& step_;
  const double share_;
  const ReadSettings& settings_;
  std::mt19937_64 dice_{std::random_device{}()};
  std::set<std::string> missing_;  // keys; changes only before the first job
  std::vector<VerifyJob> jobs_;
  uint64_t total_ = 0;
  std::atomic<uint64_t> done_{0};
  io::Mutex mutex_;
  VerifyReport report_ GUARDED_BY(mutex_);
  uint64_t wrong_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<VerifyReport> verify_step(const RemoteStep& step, double share, const ReadSettings& settings) {
  return Verifier(step, share, settings).run();
}

}  // namespace ckptfs::meta::remote
