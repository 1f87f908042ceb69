#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/c_guard.h"
#include "gpu/checkpoint.h"
#include "gpu/ckptfs.h"
#include "gpu/open_device.h"
#include "gpu/staging.h"
#include "gpu/step_save.h"
#include "io/log.h"
#include "meta/formats/box.h"

namespace gpu = ckptfs::gpu;
namespace io = ckptfs::io;
namespace meta = ckptfs::meta;
using ckptfs::Error;
using ckptfs::Result;
using ckptfs::success;
using ckptfs::gpu::guarded;

struct ckptfs_staging {
  std::shared_ptr<gpu::Staging> staging;
  std::string way;
};

struct ckptfs_checkpoint {
  std::unique_ptr<gpu::Checkpoint> checkpoint;
  std::vector<std::string> problems;
};

struct ckptfs_save {
  std::unique_ptr<gpu::StepSave> save;
};

namespace {

// The function that gets log lines. Without one they go to stderr, because stdout belongs to the program.
std::atomic<ckptfs_log_function> log_function{nullptr};

void log_line(ckptfs::log::Level level, const std::string& line) {
  if (const auto function = log_function.load()) return function(static_cast<int>(level), line.c_str());
  std::fprintf(stderr, "ckptfs: %s\n", line.c_str());
}

const bool kLogIsOurs = [] {
  ckptfs::log::send_to(log_line);
  return true;
}();

constexpr double kMostSeconds = 1e6;  // for a request to a remote

// A byte of the caller's, seen as a flag.
using StopFlag = std::atomic<bool>;
static_assert(sizeof(StopFlag) == 1 && StopFlag::is_always_lock_free);

std::string way_of(const io::TransferQueue::Way& way) {
  if (!way.io_uring) return "threads";
  return way.registered_memory ? "io_uring, registered memory" : "io_uring";
}

Result<gpu::SavedTensor> saved_tensor(const ckptfs_saved_tensor& tensor) {
  const auto dtype = meta::formats::dtype_of_safetensors(tensor.dtype);
  if (!dtype) return Error(EINVAL, std::string(tensor.name) + ": " + tensor.dtype + " is no type of safetensors");
  const auto shape = [&](const uint64_t* numbers) {
    return numbers == nullptr ? meta::formats::Shape() : meta::formats::Shape(numbers, numbers + tensor.dimensions);
  };
  gpu::SavedTensor saved{tensor.name,  *dtype,      shape(tensor.shape), static_cast<const std::byte*>(tensor.memory),
                         tensor.bytes, std::nullopt};
  if (tensor.of != nullptr) saved.piece = {tensor.of, shape(tensor.whole), shape(tensor.offsets)};
  return saved;
}

meta::formats::Box box_of(const uint64_t* offsets, const uint64_t* sizes, uint32_t dimensions) {
  const std::span begin(offsets, dimensions), length(sizes, dimensions);
  return {{begin.begin(), begin.end()}, {length.begin(), length.end()}};
}

ckptfs_load_report report_of(const gpu::Checkpoint::Report& done) {
  return {done.moved.bytes,    done.moved.read,    done.moved.direct,
          done.moved.straight, done.through_mount, done.moved.checked};
}

}  // namespace

extern "C" {

uint32_t ckptfs_abi(void) { return CKPTFS_ABI; }

const char* ckptfs_last_error(void) { return gpu::last_error_text.c_str(); }

void ckptfs_set_log(ckptfs_log_function function) { log_function = function; }

int ckptfs_staging_open(const char* device, uint64_t bytes, uint64_t slot, uint32_t lanes, ckptfs_staging** staging) {
  return guarded([&]() -> Result<> {
    gpu::Staging::Options options;
    if (bytes != 0) options.bytes = bytes;
    if (slot != 0) options.slot = slot;
    options.lanes = lanes;
    TRY_ASSIGN(auto opened, gpu::open_device(device));
    TRY_ASSIGN(auto made, gpu::Staging::make(std::move(opened), options));
    auto handle = std::make_unique<ckptfs_staging>();
    handle->staging = std::move(made);
    handle->way = way_of(handle->staging->way());
    *staging = handle.release();
    return success();
  });
}

void ckptfs_staging_close(ckptfs_staging* staging) { delete staging; }

const char* ckptfs_staging_device(const ckptfs_staging* staging) { return staging->staging->device().name().c_str(); }

const char* ckptfs_staging_way(const ckptfs_staging* staging) { return staging->way.c_str(); }

int ckptfs_memory_allocate(ckptfs_staging* staging, uint64_t bytes, void** memory) {
  return guarded([&]() -> Result<> {
    TRY_ASSIGN(*memory, staging->staging->device().allocate(bytes));
    return success();
  });
}

int ckptfs_memory_free(ckptfs_staging* staging, void* memory) {
  return guarded([&] { return staging->staging->device().release(static_cast<std::byte*>(memory)); });
}

int ckptfs_checkpoint_open(const char* path, const char* names, double seconds, const volatile unsigned char* stop,
                           ckptfs_checkpoint** checkpoint) {
  return guarded([&]() -> Result<> {
    const std::string_view wanted = names == nullptr ? "" : names;
    if (!wanted.empty() && wanted != "saved") return Error(EINVAL, std::string(wanted) + ": no kind of names");
    if (!(seconds >= 0 && seconds <= kMostSeconds)) return Error(EINVAL, "the time for a request is out of range");
    gpu::Checkpoint::Options options;
    if (!wanted.empty()) options.names = gpu::Checkpoint::Names::saved;
    const std::chrono::duration<double> time(seconds);
    if (seconds > 0) options.remote.time = std::chrono::ceil<std::chrono::milliseconds>(time);
    options.remote.stop = reinterpret_cast<const StopFlag*>(const_cast<const unsigned char*>(stop));
    TRY_ASSIGN(auto opened, gpu::Checkpoint::open(path, options));
    auto handle = std::make_unique<ckptfs_checkpoint>();
    for (const auto& problem : opened->problems()) {
      handle->problems.push_back(problem.file.empty() ? problem.reason : problem.file + ": " + problem.reason);
    }
    handle->checkpoint = std::move(opened);
    *checkpoint = handle.release();
    return success();
  });
}

void ckptfs_checkpoint_close(ckptfs_checkpoint* checkpoint) { delete checkpoint; }

uint64_t ckptfs_checkpoint_tensors(const ckptfs_checkpoint* checkpoint) {
  return checkpoint->checkpoint->items().size();
}

int ckptfs_checkpoint_tensor(const ckptfs_checkpoint* checkpoint, uint64_t index, ckptfs_tensor* tensor) {
  return guarded([&]() -> Result<> {
    const auto& items = checkpoint->checkpoint->items();
    if (index >= items.size()) return Error(EINVAL, "there is no such tensor");
    const gpu::Item& item = items[index];
    *tensor = {item.name.c_str(), meta::formats::safetensors_name(item.tensor.dtype).data(), item.tensor.shape.data(),
               static_cast<uint32_t>(item.tensor.shape.size()), item.size};
    return success();
  });
}

const char* ckptfs_checkpoint_problem(const ckptfs_checkpoint* checkpoint, uint64_t index) {
  return index < checkpoint->problems.size() ? checkpoint->problems[index].c_str() : nullptr;
}

int ckptfs_load(ckptfs_checkpoint* checkpoint, ckptfs_staging* staging, const ckptfs_target* targets, uint64_t count,
                void* stream, ckptfs_load_report* report) {
  return guarded([&]() -> Result<> {
    std::vector<gpu::Request> requests;
    requests.reserve(count);
    for (uint64_t at = 0; at < count; ++at) {
      const ckptfs_target& target = targets[at];
      requests.push_back({target.tensor, target.offset, target.bytes, static_cast<std::byte*>(target.memory)});
    }
    TRY_ASSIGN(const auto done, checkpoint->checkpoint->load(*staging->staging, requests, stream));
    if (report != nullptr) *report = report_of(done);
    return success();
  });
}

int ckptfs_load_boxes(ckptfs_checkpoint* checkpoint, ckptfs_staging* staging, const ckptfs_box_target* targets,
                      uint64_t count, void* stream, ckptfs_load_report* report) {
  return guarded([&]() -> Result<> {
    const auto& items = checkpoint->checkpoint->items();
    std::vector<gpu::BoxRequest> requests;
    requests.reserve(count);
    for (const ckptfs_box_target& target : std::span(targets, count)) {
      if (target.tensor >= items.size()) return Error(EINVAL, "there is no such tensor");
      const auto dimensions = static_cast<uint32_t>(items[target.tensor].tensor.shape.size());
      requests.push_back({target.tensor, box_of(target.offsets, target.sizes, dimensions), target.begin, target.end,
                          static_cast<std::byte*>(target.memory)});
    }
    TRY_ASSIGN(const auto done, checkpoint->checkpoint->load_boxes(*staging->staging, requests, stream));
    if (report != nullptr) *report = report_of(done);
    return success();
  });
}

int ckptfs_checkpoint_loaded(const ckptfs_checkpoint* checkpoint, uint32_t slowest, const char* host, double seconds,
                             const ckptfs_stage* stages, uint64_t count) {
  return guarded([&] {
    meta::formats::RankTimes times{slowest, host, seconds, {}};
    for (const ckptfs_stage& stage : std::span(stages, count)) times.longest[stage.name] = stage.seconds;
    return checkpoint->checkpoint->tell_loaded(times);
  });
}

int ckptfs_save_begin(ckptfs_staging* staging, const char* series, const char* tag, const char* attempt, uint32_t rank,
                      uint32_t world_size, ckptfs_save** save) {
  return guarded([&]() -> Result<> {
    TRY_ASSIGN(auto begun, gpu::StepSave::begin(staging->staging, {series, tag, attempt, rank, world_size}));
    *save = new ckptfs_save{std::move(begun)};
    return success();
  });
}

void ckptfs_save_close(ckptfs_save* save) { delete save; }

const char* ckptfs_save_folder(const ckptfs_save* save) { return save->save->folder().c_str(); }

int ckptfs_save_digests(ckptfs_save* save, int wanted) {
  return guarded([&]() -> Result<> {
    save->save->take_digests(wanted != 0);
    return success();
  });
}

int ckptfs_save_tensors(ckptfs_save* save, const char* name, const ckptfs_saved_tensor* tensors, uint64_t count,
                        void* stream) {
  return guarded([&]() -> Result<> {
    std::vector<gpu::SavedTensor> saved;
    saved.reserve(count);
    for (uint64_t at = 0; at < count; ++at) {
      TRY_ASSIGN(auto tensor, saved_tensor(tensors[at]));
      saved.push_back(std::move(tensor));
    }
    return save->save->add_tensors(name, saved, stream);
  });
}

int ckptfs_save_file(ckptfs_save* save, const char* name, uint64_t bytes, const ckptfs_part* parts, uint64_t count,
                     void* stream) {
  return guarded([&] {
    std::vector<gpu::Part> all;
    all.reserve(count);
    for (uint64_t at = 0; at < count; ++at) {
      all.push_back({static_cast<const std::byte*>(parts[at].memory), parts[at].bytes, parts[at].offset});
    }
    return save->save->add_file(name, bytes, std::move(all), stream);
  });
}

int ckptfs_save_note(ckptfs_save* save, const char* stage, double seconds) {
  return guarded([&] { return save->save->note(stage, seconds); });
}

int ckptfs_save_wait_copied(ckptfs_save* save) {
  return guarded([&] { return save->save->wait_copied(); });
}

int ckptfs_save_wait_durable(ckptfs_save* save) {
  return guarded([&] { return save->save->wait_durable(); });
}

int ckptfs_save_commit(ckptfs_save* save, int seal, int* committed) {
  return guarded([&]() -> Result<> {
    TRY_ASSIGN(const auto missing, save->save->commit(seal != 0));
    *committed = missing ? 0 : 1;
    return success();
  });
}

}  // extern "C"
