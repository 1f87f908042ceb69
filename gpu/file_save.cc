#include "gpu/file_save.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <system_error>

#include "io/aligned_buffer.h"
#include "io/fault.h"
#include "io/log.h"
#include "io/retry.h"

namespace ckptfs::gpu {
namespace {

constexpr uint64_t kLargestChunk = uint64_t{1} << 20;  // bytes that have one digest

Result<> check_parts(const std::vector<Part>& parts, uint64_t size) {
  uint64_t end = 0;
  for (const Part& part : parts) {
    if (part.offset < end) return Error(EINVAL, "two parts of a file lie over each other");
    if (part.offset > size || part.size > size - part.offset) return Error(EINVAL, "a part ends behind its file");
    end = part.offset + part.size;
  }
  return success();
}

bool set_direct_io(int file) {
  const io::DirectAlignment alignment = io::direct_alignment(file);
  if (std::max(alignment.memory, alignment.offset) > Staging::kAlignment) return false;
  const int flags = ::fcntl(file, F_GETFL);
  return flags >= 0 && ::fcntl(file, F_SETFL, flags | O_DIRECT) == 0;
}

}  // namespace

// The work of one lane. It fills its idle slots, writes each one as soon as it is filled, and reuses it when it is
// written.
class FileSave::Lane {
 public:
  Lane(FileSave& save, gpu::Lane& lane) : save_(save), lane_(lane), sizes_(lane.slots.size()) {
    idle_.reserve(lane.slots.size());
    for (size_t slot = 0; slot < lane.slots.size(); ++slot) idle_.push_back(slot);
  }

  Result<> run() {
    for (;;) {
      begin_fills();
      if (!filling_.empty()) {
        write_filled();
      } else if (!undigested_.empty()) {
        take_digests();
      } else if (writing_ > 0) {
        finish_write();
      } else if (save_.failed_ || save_.next_ >= save_.chunks_) {
        break;
      }
    }
    return error_ ? Result<>(*error_) : Result<>(success());
  }

 private:
  void fail(const Error& error) {
    save_.failed_ = true;
    if (!error_) error_ = error;
  }

  void begin_fills() {
    while (!idle_.empty() && !save_.failed_) {
      const uint64_t chunk = save_.next_++;
      if (chunk >= save_.chunks_) return;
      const size_t slot = idle_.back();
      idle_.pop_back();
      offsets_[slot] = chunk * lane_.slots[slot].memory.size();
      const auto filling = fill(slot);
      if (!filling) fail(filling.error());
      // Copies may have begun before one of them failed, so the slot is waited for in that case, too.
      if (!filling || filling.value()) {
        filling_.push_back(slot);
      } else {
        write(slot);
      }
    }
  }

  // Returns true if the device is still writing to the slot.
  Result<bool> fill(size_t slot) {
    TRY(io::fault_point("save.copy"));
    const auto memory = lane_.slots[slot].memory;
    const uint64_t begin = offsets_[slot];
    const uint64_t end = std::min(begin + memory.size(), save_.size_);
    sizes_[slot] = (end - begin + Staging::kAlignment - 1) / Staging::kAlignment * Staging::kAlignment;
    uint64_t at = begin;
    bool copying = false;
    auto copied = copy_parts(memory, begin, end, at, copying);
    if (copied) std::memset(memory.data() + (at - begin), 0, sizes_[slot] - (at - begin));
    if (copying) {
      if (const auto recorded = lane_.device.record(lane_.slots[slot].copied.get(), lane_.stream.get()); !recorded) {
        TRY(lane_.device.drain(lane_.stream.get()));
        return recorded.error();
      }
    }
    TRY(copied);
    return copying;
  }

  // Copies the parts that are in the file's range [begin, end), and fills the gaps between them with zeros. Sets `at`
  // to the end of the last part.
  Result<> copy_parts(std::span<std::byte> memory, uint64_t begin, uint64_t end, uint64_t& at, bool& copying) {
    const auto& parts = save_.parts_;
    auto part = std::partition_point(parts.begin(), parts.end(),
                                     [&](const Part& one) { return one.offset + one.size <= begin; });
    for (; part != parts.end() && part->offset < end; ++part) {
      const uint64_t from = std::max(part->offset, begin), to = std::min(part->offset + part->size, end);
      std::memset(memory.data() + (at - begin), 0, from - at);
      const auto target = memory.subspan(from - begin, to - from);
      const std::byte* const source = part->source + (from - part->offset);
      if (save_.kinds_[static_cast<size_t>(part - parts.begin())] == MemoryKind::host) {
        std::memcpy(target.data(), source, target.size());
      } else {
        TRY(lane_.device.copy_out(target, source, lane_.stream.get()));
        copying = true;
      }
      at = to;
    }
    return success();
  }

  // Waits for the slot whose filling was begun first, and writes it.
  void write_filled() {
    const size_t slot = filling_.front();
    filling_.pop_front();
    if (const auto waited = lane_.device.wait(lane_.slots[slot].copied.get()); !waited) fail(waited.error());
    if (save_.failed_) return idle_.push_back(slot);
    write(slot);
  }

  void write(size_t slot) {
    save_.note_copied();
    const auto begun = lane_.queue->begin({io::TransferQueue::Kind::write, save_.file_.get(), 0,
                                           lane_.slots[slot].memory.first(sizes_[slot]), offsets_[slot], 0, slot});
    if (begun) {
      ++writing_;
      if (save_.digests_) undigested_.push_back(slot);
    } else {
      fail(begun.error());
      idle_.push_back(slot);
    }
  }

  // Of the slot whose write was begun first. It is not filled again before.
  void take_digests() {
    const size_t slot = undigested_.front();
    undigested_.pop_front();
    save_.take_digests(offsets_[slot], lane_.slots[slot].memory);
  }

  void finish_write() {
    const auto finished = lane_.queue->finish();
    --writing_;
    idle_.push_back(finished.tag);
    if (!finished.bytes) fail(finished.bytes.error());
  }

  FileSave& save_;
  gpu::Lane& lane_;
  std::vector<size_t> sizes_;  // by slot: how many bytes of it are written
  std::vector<uint64_t> offsets_ = std::vector<uint64_t>(sizes_.size());
  std::vector<size_t> idle_;       // slots
  std::deque<size_t> filling_;     // slots, in the order of the stream
  std::deque<size_t> undigested_;  // slots that are being written
  size_t writing_ = 0;
  std::optional<Error> error_;
};

Result<std::unique_ptr<FileSave>> FileSave::begin(std::shared_ptr<Staging> staging, std::string path, io::Fd file,
                                                  uint64_t size, std::vector<Part> parts, Stream stream, bool digests) {
  std::erase_if(parts, [](const Part& part) { return part.size == 0; });
  std::ranges::sort(parts, {}, &Part::offset);
  TRY(check_parts(parts, size));
  std::unique_ptr<FileSave> save(
      new FileSave(std::move(staging), std::move(path), std::move(file), size, std::move(parts)));
  if (digests) {
    const uint64_t chunk = std::gcd(save->staging_->slot_size(), kLargestChunk);
    save->digests_ = {chunk, std::vector<io::Digest>(meta::formats::chunks_of(size, chunk))};
  }
  TRY(save->prepare(stream));
  return save;
}

FileSave::FileSave(std::shared_ptr<Staging> staging, std::string path, io::Fd file, uint64_t size,
                   std::vector<Part> parts)
    : staging_(std::move(staging)),
      path_(std::move(path)),
      file_(std::move(file)),
      size_(size),
      parts_(std::move(parts)),
      chunks_((size + staging_->slot_size() - 1) / staging_->slot_size()) {
  times_.begun = times_.copied = std::chrono::steady_clock::now();
}

FileSave::~FileSave() {
  if (thread_.joinable()) thread_.join();
}

Result<> FileSave::prepare(Stream stream) {
  Device& device = staging_->device();
  TRY_ASSIGN(const Attached attached, Attached::make(device));
  kinds_.reserve(parts_.size());
  for (const Part& part : parts_) {
    TRY_ASSIGN(const MemoryKind kind, device.kind_of(part.source));
    kinds_.push_back(kind);
  }
  if (auto room = io::allocate(file_.get(), size_); !room) {
    if (::ftruncate(file_.get(), 0) != 0)
      log::warn("{}", last_error(path_ + ": its space is not given back").message());
    return with_name(path_, room.error());
  }
  if (!set_direct_io(file_.get()))
    log::info("{}: O_DIRECT is not to be had; it is written through the page cache", path_);
  TRY_ASSIGN(OwnedEvent ready, OwnedEvent::make(device));
  TRY(device.record(ready.get(), stream));
  ready_.emplace(std::move(ready));
  try {
    thread_ = std::thread([this] { end(write_or_say_why()); });
  } catch (const std::system_error& e) {
    return Error(e.code().value(), std::string("a thread for the save: ") + e.what());
  }
  return success();
}

// Nothing may be thrown out of the thread.
Result<> FileSave::write_or_say_why() {
  try {
    return write_all();
  } catch (const std::exception& e) {
    return Error(ENOMEM, e.what());
  }
}

Result<> FileSave::write_all() {
  TRY_ASSIGN(const Attached attached, Attached::make(staging_->device()));
  // The lanes' streams wait for the event. The processor's own copies do not, so this thread waits.
  if (std::ranges::count(kinds_, MemoryKind::host) != 0) TRY(staging_->device().wait(ready_->get()));
  const int file = file_.get();
  const auto written = staging_->run(std::span(&file, 1), [this](gpu::Lane& lane) -> Result<> {
    TRY(lane.device.order(lane.stream.get(), ready_->get()));
    return Lane(*this, lane).run();
  });
  TRY(written);
  times_.written = std::chrono::steady_clock::now();
  return finish_file();
}

// The last block was written in full, so the file is cut to its length.
Result<> FileSave::finish_file() {
  TRY(io::fault_point("save.sync"));
  if (::ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) return last_error("its length");
  return io::fsync_fd(file_.get());
}

// Each lane takes those of its own slots.
void FileSave::take_digests(uint64_t offset, std::span<const std::byte> slot) {
  const uint64_t chunk = digests_->chunk, end = std::min(offset + slot.size(), size_);
  for (uint64_t at = offset; at < end; at += chunk) {
    digests_->digests[at / chunk] = io::digest_of(slot.subspan(at - offset, std::min(chunk, end - at)));
  }
}

void FileSave::note_copied() {
  const io::MutexLock lock(mutex_);
  if (++copied_ != chunks_) return;
  times_.copied = std::chrono::steady_clock::now();
  changed_.notify_all();
}

void FileSave::end(Result<> outcome) {
  const io::MutexLock lock(mutex_);
  outcome_.emplace(with_name(path_, std::move(outcome)));
  changed_.notify_all();
}

Result<> FileSave::wait_copied() {
  const io::MutexLock lock(mutex_);
  changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return copied_ == chunks_ || outcome_.has_value(); });
  return copied_ == chunks_ ? Result<>(success()) : *outcome_;
}

Result<> FileSave::wait_durable() {
  const io::MutexLock lock(mutex_);
  changed_.wait(mutex_, [this]() REQUIRES(mutex_) { return outcome_.has_value(); });
  return *outcome_;
}

}  // namespace ckptfs::gpu
