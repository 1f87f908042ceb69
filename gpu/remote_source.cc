#include "gpu/remote_source.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "gpu/remote_load.h"
#include "io/host.h"
#include "io/log.h"
#include "io/objects/open_object_store.h"
#include "io/printable.h"
#include "meta/remote/commit.h"
#include "meta/remote/remote_step.h"

namespace ckptfs::gpu {
namespace {

using meta::remote::ChunkReader;
using meta::remote::CommittedStep;
using meta::remote::RemoteStep;
using meta::remote::StepAddress;

std::string address_of(const StepAddress& address) {
  const std::string slot = address.slot ? fmt::format("/@{}", *address.slot) : "";
  return address.url + slot + "/" + address.step;
}

}  // namespace

Result<std::unique_ptr<StepSource>> RemoteSource::open(const StepAddress& address, const io::S3Settings& settings,
                                                       const RemoteWait& wait) {
  TRY(meta::remote::refuse_secrets(address.url, "the address of the remote"));
  TRY(meta::remote::check_folder_of(address.url));
  TRY_ASSIGN(auto store, io::open_object_store(address.url, settings));
  std::unique_ptr<RemoteSource> source(new RemoteSource(std::move(store), address_of(address), wait));
  TRY(source->open_step(address));
  return std::unique_ptr<StepSource>(std::move(source));
}

Result<> RemoteSource::open_step(const StepAddress& address) {
  const auto limits = [this] { return io::RequestLimits::within(wait_.time, wait_.stop); };
  TRY_ASSIGN(const CommittedStep found, meta::remote::find_step(*store_, address.step, limits()));
  if (found.gone) {
    return Error(ENOENT, fmt::format("{}: step {} was removed there", store_->url(), io::printable(address.step)));
  }
  TRY_ASSIGN(RemoteStep opened, RemoteStep::open(*store_, found, io::temporary_folder(), limits()));
  const auto step = std::make_shared<const RemoteStep>(std::move(opened));
  if (address.slot && *address.slot >= step->slots()) {
    return Error(ENOENT, fmt::format("{}: the step has the slots 0 to {}", path_, step->slots() - 1));
  }
  ChunkReader::Settings settings;
  settings.time = wait_.time;
  settings.stop = wait_.stop;
  reader_ = std::make_unique<ChunkReader>(*store_, settings);
  const meta::remote::Union files = address.slot ? step->of_slot(*address.slot) : step->whole();
  files_ = std::make_unique<const meta::remote::RemoteFiles>(*reader_, step, files);
  return success();
}

// What could not be fetched is no property of the step. Of the two the reader's words name more.
Result<> RemoteSource::check_fetched() const {
  if (const auto failure = reader_->last_failure()) return Error(EIO, path_ + ": " + failure->text);
  const Result<> outcome = files_->outcome();
  return outcome ? success() : Result<>(Error(EIO, path_ + ": " + outcome.error().message()));
}

Result<SourceReport> RemoteSource::load(Staging& staging, std::vector<Wanted> wanted, Stream stream) {
  TRY_ASSIGN(const LoadReport moved, load_remote({*reader_, *files_, wait_}, staging, std::move(wanted), stream));
  const io::RequestCounts& counts = store_->counts();
  log::info("{}: {} bytes are loaded, {} fetched for them; {} in {} GETs since it was opened", path_, moved.bytes,
            moved.read, counts.bytes_received.load(), counts.gets.load());
  return SourceReport{moved};
}

}  // namespace ckptfs::gpu
