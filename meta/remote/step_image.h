// A step as it was at one moment, as its owner sees it: what is pushed. The mount makes one from its tree
// (fs/remote/local_step.h); the simulation makes others.
//
// Thread safety: read() from any thread, the rest from one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/digest.h"
#include "io/result.h"
#include "meta/formats/completeness_facts.h"
#include "meta/remote/part.h"

namespace ckptfs::meta::remote {

class StepImage {
 public:
  StepImage() = default;
  StepImage(const StepImage&) = delete;
  StepImage& operator=(const StepImage&) = delete;
  virtual ~StepImage() = default;

  virtual const std::string& tag() const = 0;
  // Sorted by the bytes of their paths. The step itself is the entry with the path "".
  virtual const std::vector<Entry>& entries() const = 0;
  // Of the chunks of a file of entries().
  virtual Result<std::vector<io::Digest>> digests(size_t index) const = 0;
  // Fills the buffer. It need not check the digest: who reads does.
  virtual Result<> read(size_t index, uint64_t offset, std::span<std::byte> buffer) const = 0;
  // False: something of it was opened for writing, came or went since it was made.
  virtual Result<bool> is_current() const = 0;
  virtual const formats::CompletenessFacts& facts() const = 0;
  virtual Order order() const = 0;            // of its save
  virtual const SaveFacts& save() const = 0;  // by our clock
};

}  // namespace ckptfs::meta::remote
