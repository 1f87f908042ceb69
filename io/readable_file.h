// A file that is open for reading: a descriptor, or bytes that somebody gets from elsewhere, as from a remote.
// Thread safety: reading from any thread, if the source says nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "io/fd.h"
#include "io/result.h"

namespace ckptfs::io {

class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  // As io::read_full.
  virtual Result<size_t> read_full(std::span<std::byte> buffer, uint64_t offset) const = 0;
  virtual Result<uint64_t> size() const = 0;
};

// Owns what it reads from.
class ReadableFile {
 public:
  ReadableFile() = default;
  explicit ReadableFile(Fd descriptor) : descriptor_(std::move(descriptor)) {}
  explicit ReadableFile(std::unique_ptr<const ByteSource> source) : source_(std::move(source)) {}

  explicit operator bool() const { return source_ != nullptr || descriptor_; }
  int descriptor() const { return descriptor_.get(); }  // -1 if there is a source
  const ByteSource* source() const { return source_.get(); }

 private:
  Fd descriptor_;
  std::unique_ptr<const ByteSource> source_;
};

}  // namespace ckptfs::io
