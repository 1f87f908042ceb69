#include "meta/care/maintenance.h"

#include <algorithm>
#include <cstring>

#include "io/log.h"
#include "meta/care/neighbours.h"
#include "meta/care/sharing.h"
#include "meta/time.h"

namespace ckptfs::meta {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Maintenance::Time;

constexpr int kShare = 20;        // while somebody writes, one part in so many of the time is spent reading
constexpr int kPauseFactor = 50;  // the search for work is followed by a pause of so many times its duration
constexpr Time kStillWriting = std::chrono::seconds(10);  // a trainer opens and closes its swap files all the time
constexpr Time kRecordScrubbed = std::chrono::minutes(5);
constexpr Time kShortest = std::chrono::milliseconds(250);
constexpr Time kLongest = std::chrono::seconds(15);

uint64_t first_bytes(const io::Digest& root) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, root.data(), sizeof bytes);
  return bytes;
}

}  // namespace

void Maintenance::start() {
  thread_.start([this] { run(); }, io::BackgroundThread::Priority::low);
}

MaintenanceReport Maintenance::report() const {
  const io::MutexLock lock(mutex_);
  return report_;
}

bool Maintenance::pause(Time read) {
  const auto now = Clock::now();
  if (store_.open_files().writing()) written_ = now;
  return thread_.wait_for(now - written_ < kStillWriting ? read * (kShare - 1) : Time(0));
}

void Maintenance::failed(const std::string& what, const Error& error) {
  log::warn("{}: {}", what, error.message());
  const io::MutexLock lock(mutex_);
  ++report_.failures;
}

void Maintenance::run() {
  if (const auto last = store_.index().number(kScrubbedKey)) scrubbed_ = last.value();
  const Time interval = std::clamp<Time>(options_.quiet / 2, kShortest, kLongest);
  Time rest = kShortest;
  for (auto began = Clock::now(); thread_.wait_for(rest);) {
    const auto done = maintain_all();
    if (!done && !is_gone(done.error())) failed("maintenance", done.error());
    const auto passed = Clock::now() - began;
    began += passed;
    if (const auto scrubbed = scrub(passed); !scrubbed) failed("the scrub", scrubbed.error());
    rest = std::max(interval, done ? done.value() * kPauseFactor : kLongest);
  }
}

// Returns how long the search for work took. If nothing has changed and nothing was postponed, there is nothing to do.
Result<Maintenance::Time> Maintenance::maintain_all() {
  TRY(store_.inspect([this] { return !thread_.is_stopping(); }));
  const uint64_t version = store_.tree().version();
  if (version == version_ && !postponed_) return Time(0);
  const auto began = Clock::now();
  TRY_ASSIGN(inventory_, take_inventory());
  TRY(note_damaged(inventory_.damaged));
  TRY(find_identical_steps());
  const Time searched = Clock::now() - began;
  postponed_ = false;
  for (const File& file : inventory_.undigested) {
    if (thread_.is_stopping()) return searched;
    const auto done = maintain_file(file);
    if (!done && !is_gone(done.error())) failed(store_.tree().path_of(file.inode), done.error());
    if (!done || !done.value()) postponed_ = true;
  }
  version_ = version;
  return searched;
}

Result<bool> Maintenance::maintain_file(const File& file) {
  TRY_ASSIGN(const Taking taking, digest(file));
  if (taking == Taking::taken) TRY(share(file));
  return taking == Taking::taken || taking == Taking::too_long;
}

// The inventory has, for each blob, one file that names it.
Result<Maintenance::Inventory> Maintenance::take_inventory() {
  std::unordered_map<BlobNumber, File> files;
  TRY(store_.index().for_each_inode([&](InodeNumber number, const InodeRecord& record) -> Result<> {
    const bool swapped = record.is_live_file() && (record.flags & kSwap) != 0;
    if (record.is_regular() && record.nlink != 0 && !swapped) {
      files.try_emplace(record.blob, File{record.blob, number, record.uid});
    }
    return success();
  }));
  Inventory inventory;
  by_root_.clear();
  TRY(store_.index().for_each_blob([&](BlobNumber number, const BlobRecord& record) -> Result<> {
    const auto file = files.find(number);
    if (file == files.end()) return success();
    switch (record.digest.state) {
      case DigestState::none:
      case DigestState::changed:
        inventory.undigested.push_back(file->second);
        return success();
      case DigestState::damaged:
        inventory.damaged.push_back(number);
        break;
      case DigestState::taken:
        by_root_.emplace(Root{first_bytes(record.digest.root), file->second.uid}, number);
        break;
    }
    inventory.digested.push_back(file->second);
    inventory.bytes += record.digest.length;
    return success();
  }));
  const io::MutexLock lock(mutex_);
  report_.waiting_files = inventory.undigested.size();
  return inventory;
}

bool Maintenance::is_quiet(const File& file) const {
  const auto blob = store_.blobs().stat(file.blob);
  if (!blob) return false;
  const timespec time = now();
  return !later(blob.value().st_ctim, {time.tv_sec - options_.quiet.count(), time.tv_nsec});
}

Result<Taking> Maintenance::digest(const File& file) {
  if (!is_quiet(file)) return Taking::postponed;
  TRY_ASSIGN(const Taking taking, take_digests(store_, file.inode, [this](Time read) { return pause(read); }));
  if (taking != Taking::taken && taking != Taking::too_long) return taking;
  TRY_ASSIGN(const BlobRecord record, store_.index().blob(file.blob));
  const io::MutexLock lock(mutex_);
  --report_.waiting_files;
  if (taking == Taking::too_long) return taking;
  ++report_.digested_files;
  report_.digested_bytes += record.digest.length;
  return taking;
}

Result<> Maintenance::share(const File& file) {
  TRY_ASSIGN(const BlobRecord record, store_.index().blob(file.blob));
  const Root key{first_bytes(record.digest.root), file.uid};
  const auto [first, last] = by_root_.equal_range(key);
  const auto equal = std::find_if(first, last, [&](const auto& known) { return known.second != file.blob; });
  const std::optional<BlobNumber> twin = equal == last ? std::nullopt : std::optional(equal->second);
  by_root_.emplace(key, file.blob);
  if (twin) return share_with(*twin, file.blob);

  TRY_ASSIGN(const auto place, place_of(store_.tree(), file.inode));
  if (!place) return success();
  TRY_ASSIGN(const NeighbourSteps steps, neighbours(store_.tree(), place->series, place->step));
  for (const auto& step : {steps.before, steps.after}) {
    const auto other = step ? file_at(store_.tree(), *step, place->path) : std::nullopt;
    if (!other) continue;
    TRY_ASSIGN(const InodeRecord neighbour, store_.tree().inode(*other));
    if (neighbour.uid == file.uid) TRY(share_with(neighbour.blob, file.blob));
  }
  return success();
}

Result<> Maintenance::share_with(BlobNumber from, BlobNumber to) {
  const auto bytes = share_equal_chunks(store_, from, to, [this](Time t) { return pause(t); });
  if (!bytes || bytes.value() > 0) store_.open_files().drop_view_blocks();
  TRY(bytes);
  const io::MutexLock lock(mutex_);
  report_.shared_bytes += bytes.value();
  return success();
}

Result<> Maintenance::note_damaged(const std::vector<BlobNumber>& blobs) {
  std::vector<std::string> paths;
  for (const BlobNumber blob : blobs) {
    TRY_ASSIGN(const auto names, paths_of_blob(store_, blob));
    paths.insert(paths.end(), names.begin(), names.end());
  }
  const io::MutexLock lock(mutex_);
  report_.damaged = std::move(paths);
  return success();
}

Result<> Maintenance::find_identical_steps() {
  TRY_ASSIGN(const auto found, identical_steps(store_));
  std::vector<std::string> identical;
  for (const auto& [step, before] : found) {
    const std::string path = step.series + "/" + step.tag;
    identical.push_back(path);
    if (!judged_.insert(step.inode).second) continue;
    log::warn("{}: its tensors are, bit for bit, those of {}: did the optimizer change anything?", path,
              store_.tree().path_of(before));
  }
  const io::MutexLock lock(mutex_);
  report_.identical = std::move(identical);
  return success();
}

// Reads so many bytes that all is read once within the time that is set. A large file is read in one go, and the pause
// afterwards is longer.
Result<> Maintenance::scrub(Time passed) {
  if (options_.scrub.count() == 0 || inventory_.digested.empty()) return success();
  const double share = std::chrono::duration<double>(passed) / std::chrono::duration<double>(options_.scrub);
  const auto all = static_cast<double>(inventory_.bytes);
  scrub_credit_ = std::min(scrub_credit_ + share * all, all);
  const BlobNumber before = scrubbed_;
  for (size_t i = 0; i < inventory_.digested.size() && scrub_credit_ > 0 && !thread_.is_stopping(); ++i) {
    TRY_ASSIGN(const uint64_t bytes, scrub_next());
    scrub_credit_ -= static_cast<double>(std::max<uint64_t>(bytes, 1));
    const io::MutexLock lock(mutex_);
    report_.scrubbed_bytes += bytes;
  }
  return scrubbed_ == before ? Result<>(success()) : record_scrubbed();
}

// Returns the bytes read, 0 if the file is gone meanwhile.
Result<uint64_t> Maintenance::scrub_next() {
  const auto& files = inventory_.digested;
  auto next = std::upper_bound(files.begin(), files.end(), scrubbed_,
                               [](BlobNumber blob, const File& file) { return blob < file.blob; });
  if (next == files.end()) next = files.begin();
  scrubbed_ = next->blob;
  const auto verified = verify(store_, next->inode, 0, [this](Time read) { return pause(read); });
  if (verified) return verified.value().bytes;
  if (is_gone(verified.error())) return uint64_t{0};
  return verified.error();
}

// Records the position so seldom that the writes do not matter.
Result<> Maintenance::record_scrubbed() {
  const auto now = Clock::now();
  if (now - scrub_recorded_ < kRecordScrubbed) return success();
  scrub_recorded_ = now;
  Tree::Change change = store_.tree().begin();
  change.batch.put_number(kScrubbedKey, scrubbed_);
  return store_.tree().commit(std::move(change));
}

}  // namespace ckptfs::meta
