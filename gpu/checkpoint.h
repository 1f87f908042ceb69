// A checkpoint to be loaded: the list of its tensors, and loading any part of them into the caller's memory.
//
// What the items are depends on the path. For a step (DeepSpeed's, a Trainer's, DCP, or one that this library saved; on
// a mount or in any folder) they are the parameters under the names that the views use: "layers.0.weight" in the type
// that the model computes with, "layers.0.weight/exp_avg" and so on, with the ranks' parts joined. For a safetensors
// file they are its tensors. For a file of torch.save they are its storages, named by their keys ("0").
//
// Where its bytes come from, and how they are checked: folder_source.h, remote_source.h.
//
// Thread safety: only one thread at a time may call load(); everything else is constant.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/step_source.h"
#include "meta/formats/manifest.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::gpu {

struct Item {
  std::string name;
  meta::formats::Tensor tensor;  // its boxes are in `boxes`
  uint64_t size = 0;             // bytes
  // Where the tensor's pieces begin in it, in bytes.
  std::vector<uint64_t> begins = {};
  // If it has no pieces: the boxes that hold it. All are in bytes: an element's bytes are a last dimension.
  std::vector<meta::formats::PlacedBox> boxes = {};
};

// Bytes [offset, offset + size) of an item, and the memory that they are loaded to.
struct Request {
  size_t item = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::byte* target = nullptr;
};

// Elements [begin, end), in row-major order, of a box of an item. They are loaded, contiguous, to `target`.
struct BoxRequest {
  size_t item = 0;
  meta::formats::Box box;
  uint64_t begin = 0;
  uint64_t end = 0;
  std::byte* target = nullptr;
};

class Checkpoint {
 public:
  // views: see above. saved: of a DCP checkpoint, the names that its tensors were saved by; of others, no difference.
  enum class Names { views, saved };
  struct Options {
    Names names = Names::views;
    RemoteWait remote;
  };
  // `path`: of a folder or a file, or the address of a step in a remote (meta/remote/address.h). Fails with EBADMSG and
  // the first reason if nothing of the checkpoint can be read.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path, const Options& options);
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path) { return open(path, Options()); }

  const std::vector<Item>& items() const { return items_; }
  // The parts of the step that could not be read. They are not among the items.
  const std::vector<meta::formats::Problem>& problems() const { return problems_; }

  using Report = SourceReport;
  // Like load() of load.h. Fails with EINVAL if a request exceeds its item, with EBADMSG or EFBIG if the step has a
  // manifest that cannot be read.
  Result<Report> load(Staging& staging, const std::vector<Request>& requests, Stream stream);
  // The same for boxes. Fails with EINVAL if a box lies outside its item, or a range outside its box.
  Result<Report> load_boxes(Staging& staging, const std::vector<BoxRequest>& requests, Stream stream);
  // Tells the daemon of the mount how long the ranks of a group took to load. Does nothing without a mount.
  Result<> tell_loaded(const meta::formats::RankTimes& times) const { return source_->tell_loaded(times); }

 private:
  explicit Checkpoint(std::unique_ptr<StepSource> source) : source_(std::move(source)) {}
  void add_items(meta::formats::TensorMap map);
  void add_item(std::string name, meta::formats::Tensor tensor);
  Result<> add_storages();

  const std::unique_ptr<StepSource> source_;
  std::vector<Item> items_;
  std::vector<meta::formats::Problem> problems_;
};

}  // namespace ckptfs::gpu
