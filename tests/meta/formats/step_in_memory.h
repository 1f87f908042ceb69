// Files and steps in memory, for tests of the readers.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <span>
#include <string>
#include <vector>

#include "io/fd.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::meta::formats {

inline io::Fd file_of(const std::string& content) {
  io::Fd file(::memfd_create("file", MFD_CLOEXEC));
  EXPECT_TRUE(io::write_full(file.get(), std::as_bytes(std::span(content)), 0));
  return file;
}

class StepInMemory : public StepFiles {
 public:
  explicit StepInMemory(const io::ReadLimit& limit = io::ReadLimit()) : StepFiles(limit) {}
  void add(const std::string& path, const std::string& content) {
    files_.push_back({path, content.size()});
    contents_.push_back(file_of(content));
  }
  const std::vector<File>& list() const override { return files_; }
  Result<io::ReadableFile> open(uint32_t index) const override {
    return io::ReadableFile(io::Fd(::dup(contents_[index].get())));
  }

 private:
  std::vector<File> files_;
  std::vector<io::Fd> contents_;
};

inline const Parameter& find(const TensorMap& map, const std::string& name) {
  static const Parameter none;
  for (const Parameter& parameter : map.parameters) {
    if (parameter.name == name) return parameter;
  }
  ADD_FAILURE() << "there is no " << name;
  return none;
}

}  // namespace ckptfs::meta::formats
