// Reads files that torch.save writes: a zip of a pickle (data.pkl) and one stored entry for each storage (data/0,
// data/1, ...). Reads only the zip's directory and the pickle. For a storage it returns the place in the file, where
// its bytes can be read.
//
// Format: torch/serialization.py (_save), torch/_utils.py (_rebuild_tensor_v2 and the like).
//
// Thread safety: only one thread at a time may use a TorchFile. Its results are plain data.
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
#include "meta/formats/tensor_map.h"
#include "meta/formats/zip_archive.h"

namespace ckptfs::meta::formats {

// A tensor in a torch file.
struct TorchTensor {
  Dtype dtype = Dtype::float32;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;            // in elements
  std::string storage;                      // the key of its storage, which is the entry data/<key>
  uint64_t first = 0;                       // index of its first element in the storage
  std::optional<Pickle::Value> attributes;  // attributes that were set on it, as a dict

  uint64_t elements() const { return *elements_of(shape); }
  // Returns true if the elements are in order, without gaps.
  bool is_contiguous() const;
};

class TorchFile {
 public:
  // `file` is open for reading; the caller owns it and must keep it open. `part` is the range that torch.save wrote.
  // `most` is the maximal size of the pickle in bytes. Fails with EBADMSG if the data is not what torch.save writes, or
  // is damaged; with ENODATA if it was not written to its end; with ENOTSUP if the variant is not supported (before
  // torch 1.6; big-endian).
  static Result<TorchFile> open(const io::LimitedFile& file, const FileRange& part, uint64_t most = Pickle::kMostBytes);
  // The same for a whole file.
  static Result<TorchFile> open(const io::LimitedFile& file);

  Pickle::Value root() const { return pickle_->root(); }

  // Returns nothing if the value is no tensor. Fails with EBADMSG if it cannot be a valid tensor, and with ENOTSUP if
  // the kind of tensor is not supported. A returned tensor ends within its storage.
  static Result<std::optional<TorchTensor>> tensor(const Pickle::Value& value);
  // Returns where a contiguous tensor's elements are in the file. Fails with ENOTSUP if it is not contiguous, and with
  // EBADMSG if its storage is not there.
  Result<FileRange> range(const TorchTensor& tensor);

 private:
  TorchFile(ZipArchive archive, std::string folder, Pickle pickle);

  ZipArchive archive_;
  std::string folder_;                    // the prefix of all entries: "archive/"
  std::unique_ptr<const Pickle> pickle_;  // allocated by itself, because values point to it
  // The places of storages that were requested, by entry. A pickle may request the same one a million times.
  std::unordered_map<uint64_t, FileRange> places_;
};

}  // namespace ckptfs::meta::formats
