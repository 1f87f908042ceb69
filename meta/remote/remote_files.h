// The files of a committed step in the form that the readers of formats take. What they read is fetched by a
// ChunkReader, which must outlive this and what it opens.
//
// Thread safety: one thread at a time may open and read; the rest is constant.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "io/read_limit.h"
#include "meta/formats/tensor_map.h"
#include "meta/remote/chunk_reader.h"

namespace ckptfs::meta::remote {

class RemoteFiles : public formats::StepFiles {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  // `files`: the union of the step, or what one slot holds. Folders and links are left out. After the deadline nothing
  // more is asked for: ETIMEDOUT.
  RemoteFiles(ChunkReader& reader, const std::shared_ptr<const RemoteStep>& step, const Union& files,
              const io::ReadLimit& limit = io::ReadLimit(), Deadline deadline = Deadline::max());

  const std::vector<File>& list() const override { return files_; }
  const RemoteFile& file(uint32_t index) const { return remote_[index]; }
  Result<io::ReadableFile> open(uint32_t index) const override;
  // The first error of a fetch. The readers of formats take it for a property of the step. After it nothing is read.
  Result<> outcome() const { return *outcome_; }

 private:
  ChunkReader& reader_;
  const Deadline deadline_;
  const std::shared_ptr<Result<>> outcome_ = std::make_shared<Result<>>(success());
  std::vector<File> files_;
  std::vector<RemoteFile> remote_;
};

}  // namespace ckptfs::meta::remote
