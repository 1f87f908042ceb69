#include "meta/remote/remote_files.h"

#include <algorithm>
#include <cerrno>

namespace ckptfs::meta::remote {
namespace {

class RemoteBytes : public io::ByteSource {
 public:
  RemoteBytes(ChunkReader& reader, RemoteFile file, RemoteFiles::Deadline deadline, std::shared_ptr<Result<>> outcome)
      : reader_(reader), file_(std::move(file)), deadline_(deadline), outcome_(std::move(outcome)) {}

  Result<size_t> read_full(std::span<std::byte> buffer, uint64_t offset) const override {
    const uint64_t size = file_.size(), wanted = offset < size ? std::min<uint64_t>(buffer.size(), size - offset) : 0;
    if (*outcome_ && std::chrono::steady_clock::now() > deadline_) {
      *outcome_ = Error(ETIMEDOUT, file_.entry.path + ": the readers of its step's files took too long");
    }
    if (*outcome_) *outcome_ = reader_.read_now(file_, offset, buffer.first(wanted));
    TRY(*outcome_);
    return static_cast<size_t>(wanted);
  }
  Result<uint64_t> size() const override { return file_.size(); }

 private:
  ChunkReader& reader_;
  const RemoteFile file_;
  const RemoteFiles::Deadline deadline_;
  const std::shared_ptr<Result<>> outcome_;
};

}  // namespace

RemoteFiles::RemoteFiles(ChunkReader& reader, const std::shared_ptr<const RemoteStep>& step, const Union& files,
                         const io::ReadLimit& limit, Deadline deadline)
    : StepFiles(limit), reader_(reader), deadline_(deadline) {
  for (const UnionEntry& entry : files.entries) {
    if (step->entry(entry).kind != Entry::Kind::file) continue;
    files_.push_back({entry.path, step->entry(entry).size});
    remote_.push_back({step, entry});
  }
}

Result<io::ReadableFile> RemoteFiles::open(uint32_t index) const {
  return io::ReadableFile(std::make_unique<const RemoteBytes>(reader_, remote_[index], deadline_, outcome_));
}

}  // namespace ckptfs::meta::remote
