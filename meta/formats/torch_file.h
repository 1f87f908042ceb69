// Files that torch.save writes: a zip of a pickle (data.pkl) and one stored entry for each storage (data/0, data/1,
// ...). Only the zip's directory and the pickle are read; of a storage its place in the file is told, so that whoever
// needs its bytes reads them there.
//
// Format: torch/serialization.py (_save), torch/_utils.py (_rebuild_tensor_v2 and the like).
//
// Thread safety: TorchFile: one thread at a time; what it told is plain data.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/read_limit.h"
#include "io/result.h"
#include "meta/formats/dtype.h"
#include "meta/formats/pickle.h"
#include "meta/formats/zip_archive.h"

namespace ckptfs::meta::formats {

// A tensor in a torch file.
struct TorchTensor {
  Dtype dtype = Dtype::float32;
  std::vector<uint64_t> shape;
  std::vector<int64_t> strides;             // in elements
  std::string storage;                      // the key of its storage; it lies in data/<key>
  uint64_t first = 0;                       // element of the storage at which it begins
  std::optional<Pickle::Value> attributes;  // what was set on it, as a dict

  uint64_t elements() const;
  // Its elements lie in order, with nothing between them.
  bool is_contiguous() const;
};

class TorchFile {
 public:
  // `file`: a descriptor for reading, which stays the caller's, and open as long as the TorchFile; `part`: where in it
  // torch.save wrote. EBADMSG: it is not what torch.save writes, or is damaged; ENOTSUP: of a kind that is not read
  // (before torch 1.6; big-endian). `most`: bytes of its pickle.
  static Result<TorchFile> open(const io::LimitedFile& file, const FileRange& part, uint64_t most = Pickle::kMostBytes);
  // All of a file.
  static Result<TorchFile> open(const io::LimitedFile& file);

  Pickle::Value root() const { return pickle_->root(); }

  // None: the value is no tensor. EBADMSG: it claims to be one, and cannot be. ENOTSUP: one of a kind that is not read.
  // A tensor reaches at most to the end of its storage.
  static Result<std::optional<TorchTensor>> tensor(const Pickle::Value& value);
  // Where in the file the storage of that key lies. EBADMSG: nowhere.
  Result<FileRange> storage(const std::string& key);
  // Where a contiguous tensor's elements lie. ENOTSUP: it is not contiguous.
  Result<FileRange> range(const TorchTensor& tensor);

 private:
  TorchFile(ZipArchive archive, std::string folder, Pickle pickle);

  ZipArchive archive_;
  std::string folder_;                    // of all entries: "archive/"
  std::unique_ptr<const Pickle> pickle_;  // does not move: values point to it
  // Of storages that were asked for, by entry: a pickle may have one a million times.
  std::unordered_map<uint64_t, FileRange> places_;
};

}  // namespace ckptfs::meta::formats
