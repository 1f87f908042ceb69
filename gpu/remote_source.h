// A committed step in a remote. Each chunk that is fetched of it is compared with its digest.
//
// What the readers of formats need comes through a ChunkReader, which keeps it for a while, and so does what several
// tensors share a request for. remote_load.h has the load.
//
// Thread safety: as StepSource. A child of fork must not use or destroy it, since the reader's threads are not there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/step_source.h"
#include "io/objects/object_store.h"
#include "io/objects/s3_settings.h"
#include "meta/remote/address.h"
#include "meta/remote/chunk_reader.h"
#include "meta/remote/remote_files.h"

namespace ckptfs::gpu {

class RemoteSource : public StepSource {
 public:
  // `wait.stop` outlives the source. ENOENT, in words: there is no such step, or no such slot of it.
  static Result<std::unique_ptr<StepSource>> open(const meta::remote::StepAddress& address,
                                                  const io::S3Settings& settings, const RemoteWait& wait);

  const std::string& path() const override { return path_; }
  bool is_step() const override { return true; }
  const meta::formats::StepFiles& files() const override { return *files_; }
  Result<> check_fetched() const override;
  Result<SourceReport> load(Staging& staging, std::vector<Wanted> wanted, Stream stream) override;
  Result<> tell_loaded(const meta::formats::RankTimes&) const override { return success(); }

 private:
  RemoteSource(std::unique_ptr<io::ObjectStore> store, std::string path, const RemoteWait& wait)
      : store_(std::move(store)), path_(std::move(path)), wait_(wait) {}
  Result<> open_step(const meta::remote::StepAddress& address);

  const std::unique_ptr<io::ObjectStore> store_;
  const std::string path_;
  const RemoteWait wait_;
  std::unique_ptr<meta::remote::ChunkReader> reader_;
  std::unique_ptr<const meta::remote::RemoteFiles> files_;
};

}  // namespace ckptfs::gpu
