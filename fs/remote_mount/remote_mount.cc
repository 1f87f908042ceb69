#include "fs/remote_mount/remote_mount.h"

#include <malloc.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <span>

#include "fs/remote/remote_settings.h"
#include "fs/remote_mount/operations.h"
#include "fs/remote_mount/parts.h"
#include "io/digest.h"
#include "io/host.h"
#include "io/log.h"
#include "io/objects/open_object_store.h"

namespace ckptfs::fs::remote_mount {

namespace {

using nlohmann::json;

std::string id_of(const RemoteMountOptions& options) {
  const std::string text = options.url + '\0' + options.mountpoint;
  return io::hex_of(io::digest_of(std::as_bytes(std::span(text)))).substr(0, 16);
}

Result<> open_remote(Parts& parts) {
  const RemoteMountOptions& options = parts.options;
  TRY_ASSIGN(parts.store, io::open_object_store(options.url, options.s3));
  parts.store->counts().tell_trouble([](const std::string& text) { log::warn("{}", text); });
  TRY_ASSIGN(parts.facts, meta::remote::read_facts(*parts.store, parts.limits()));
  if (!options.cache.empty()) {
    TRY_ASSIGN(parts.cache, meta::remote::ChunkCache::open(options.cache, options.cache_size));
  }
  meta::remote::ChunkReader::Settings settings;
  settings.time = options.time;
  settings.cache = parts.cache.get();
  parts.reader = std::make_unique<meta::remote::ChunkReader>(*parts.store, settings);
  if (!options.for_others) parts.ownership.only = std::pair(parts.uid, parts.gid);
  const std::string& folder = options.cache.empty() ? io::temporary_folder() : options.cache;
  parts.catalog = std::make_unique<Catalog>(*parts.store, parts.facts, *parts.reader, folder, parts.ownership);
  return success();
}

uint64_t value_of(const std::atomic<uint64_t>& count) { return count.load(std::memory_order_relaxed); }

json requests_of(const io::RequestCounts& counts) {
  return {{"gets", value_of(counts.gets)},
          {"lists", value_of(counts.lists)},
          {"retries", value_of(counts.retries)},
          {"bytes_received", value_of(counts.bytes_received)}};
}

json remote_of(const Parts& parts) {
  json remote = to_json(parts.options.s3);
  remote.update({{"url", parts.options.url}, {"id", parts.facts.id}, {"slots", parts.facts.slots}});
  return remote;
}

json cache_of(const Parts& parts) {
  if (!parts.cache) return nullptr;
  const auto usage = parts.cache->usage();
  constexpr uint64_t kChunk = meta::remote::kChunkBytes;
  return {{"folder", parts.options.cache},
          {"bytes", usage.chunks * kChunk},
          {"most", usage.most * kChunk},
          {"failed", usage.failed}};
}

int64_t seconds_since(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - time).count();
}

}  // namespace

RemoteMount::RemoteMount(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

RemoteMount::~RemoteMount() {
  parts_->stop = true;
  if (parts_->reader) parts_->reader->stop();
  parts_->tasks.wait();
}

Result<std::unique_ptr<RemoteMount>> RemoteMount::start(const RemoteMountOptions& options) {
  ::mallopt(M_ARENA_MAX, 4);  // each heap keeps what it had
  ::mallopt(M_TRIM_THRESHOLD, 4 << 20);
  auto parts = std::make_unique<Parts>();
  parts->options = options;
  parts->id = id_of(options);
  parts->uid = ::geteuid();
  parts->gid = ::getegid();
  ::clock_gettime(CLOCK_REALTIME, &parts->mounted);
  TRY(open_remote(*parts));
  fuse_lowlevel_ops operations{};
  add_operations(operations);
  std::unique_ptr<RemoteMount> mount(new RemoteMount(std::move(parts)));
  Parts& made = *mount->parts_;
  TRY_ASSIGN(made.session, Session::make({options.mountpoint, options.url, options.for_others, true, options.no_exec},
                                         operations, mount->parts_.get()));
  if (options.before_mount) options.before_mount();
  TRY(made.session->mount());
  made.to_stop = made.session.get();
  if (const auto ahead = made.session->read_far_ahead(); !ahead) {
    log::info("the kernel reads ahead by 128 KiB only: {}", ahead.error().message());
  }
  log::info("{} (remote {}, {} slots) is mounted at {}", options.url, made.facts.id, made.facts.slots,
            options.mountpoint);
  return mount;
}

Result<> RemoteMount::run() {
  Parts& parts = *parts_;
  Result<> looped = parts.session->loop();
  parts.session->release();
  parts.stop = true;
  parts.reader->stop();
  parts.tasks.wait();
  parts.files.clear();
  parts.folders.clear();
  parts.to_stop = nullptr;
  parts.session.reset();
  if (!parts.cache) return looped;
  if (const auto closed = parts.cache->close(); !closed) {
    log::warn("{}: {}; the next mount finds it empty", parts.options.cache, closed.error().message());
  }
  return looped;
}

void RemoteMount::stop() {
  if (Session* const session = parts_->to_stop) session->stop();
}

void RemoteMount::set_socket(const std::string& path) { parts_->socket = path; }

const std::string& RemoteMount::id() const { return parts_->id; }

json RemoteMount::status() const {
  const Parts& parts = *parts_;
  const auto known = parts.catalog->counts();
  const auto& chunks = parts.reader->counts();
  json status = {{"mountpoint", parts.options.mountpoint},
                 {"remote", remote_of(parts)},
                 {"pid", ::getpid()},
                 {"version", CKPTFS_VERSION},
                 {"steps", known.steps},
                 {"opened_steps", known.opened},
                 {"open_files", parts.files.count()},
                 {"cache", cache_of(parts)},
                 {"requests", requests_of(parts.store->counts())},
                 {"chunks",
                  {{"from_memory", value_of(chunks.from_memory)},
                   {"from_cache", value_of(chunks.from_cache)},
                   {"fetched", value_of(chunks.fetched)},
                   {"bytes_fetched", value_of(chunks.bytes_fetched)},
                   {"failed_requests", value_of(chunks.failed)}}},
                 {"served", value_of(parts.requests)},
                 {"errors", value_of(parts.errors)}};
  if (const auto trouble = parts.store->counts().trouble()) {
    status["trouble"] = {{"text", trouble->text}, {"seconds", seconds_since(trouble->since)}};
  }
  if (const auto failure = parts.reader->last_failure()) {
    const auto when = std::chrono::duration_cast<std::chrono::seconds>(failure->when.time_since_epoch());
    status["last_failure"] = {{"text", failure->text}, {"when", when.count()}};
  }
  return status;
}

}  // namespace ckptfs::fs::remote_mount
