// A checkpoint to be loaded: what tensors there are, and any part of any of them brought to memory of the caller.
//
// Of a step (DeepSpeed's, a Trainer's, DCP, what was saved through us; on a mount or in any folder) these are the
// parameters as the views name them: "layers.0.weight" as the model computes with it, and "layers.0.weight/exp_avg" and
// so on, ranks joined. Of a safetensors file: its tensors. Of a file of torch.save: its storages, by their keys ("0").
//
// A file of the step stays open as long as the Checkpoint: rotation leaves such a step alone.
//
// Thread safety: load() from one thread at a time; the rest is constant.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/folder_files.h"
#include "gpu/load.h"
#include "gpu/mount_client.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::gpu {

struct Item {
  std::string name;
  meta::formats::Tensor tensor;
  uint64_t size = 0;  // bytes
};

// Bytes [offset, offset + size) of an item, and where they are to be.
struct Request {
  size_t item = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::byte* target = nullptr;
};

class Checkpoint {
 public:
  // EBADMSG: nothing of it can be read, with the first reason.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path);

  const std::vector<Item>& items() const { return items_; }
  // What of the step could not be read: it is not among the items.
  const std::vector<meta::formats::Problem>& problems() const { return problems_; }

  struct Report {
    LoadReport moved;
    uint64_t through_mount = 0;  // files of a mount that were not read past it
  };
  // As load() of load.h. EINVAL: a request for what an item does not have.
  Result<Report> load(Staging& staging, const std::vector<Request>& requests, Stream stream);

 private:
  Checkpoint(std::string path, FolderFiles files) : path_(std::move(path)), files_(std::move(files)) {}
  void add_items(meta::formats::TensorMap map);
  Result<> add_storages();
  Result<> open_files(const std::vector<uint32_t>& files);
  Result<> get_blobs(const MountClient& mount, const std::vector<uint32_t>& files);

  const std::string path_;
  const FolderFiles files_;
  std::vector<Item> items_;
  std::vector<meta::formats::Problem> problems_;
  std::map<uint32_t, io::Fd> opened_;  // where they are; of a mount those that cannot be read past it
  std::map<uint32_t, io::Fd> blobs_;   // of those of a mount that can
  io::Fd kept_;                        // one of these, through the mount
  bool on_mount_ = false;
};

}  // namespace ckptfs::gpu
