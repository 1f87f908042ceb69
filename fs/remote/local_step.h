// A step of a mount, as it is pushed.
//
// Nothing is cloned. The digests of each file are taken first (meta/care/digests.h). They hold until somebody opens the
// file for writing or truncates it, and that outlives the daemon. So whether the step still is what it was is asked
// from the digests' marks and from the names, without reading anything; and what is read is compared with the digests.
//
// Thread safety: as StepImage says.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "fs/base/turns.h"
#include "fs/steps/step_facts.h"
#include "fs/steps/step_writers.h"
#include "meta/care/digests.h"
#include "meta/remote/step_image.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

class LocalStep : public meta::remote::StepImage {
 public:
  struct Environment {
    meta::Store& store;
    StepFactsFinder& step_facts;
    const OpenFileTable& files;
    StepWriters& writers;
    Turns& readings;
    const std::atomic<bool>& stop;
    std::chrono::seconds quiet;
  };

  // Takes the digests that are missing. `pause`: between chunks of what is read; false ends with ECANCELED. EBUSY:
  // somebody writes to it. EINVAL, in words: it holds what cannot be pushed. EBADMSG or EIO: a file of it is damaged.
  static Result<std::unique_ptr<LocalStep>> make(const Environment& environment, meta::InodeNumber step,
                                                 const meta::Pause& pause);

  const std::string& tag() const override { return tag_; }
  const std::vector<meta::remote::Entry>& entries() const override { return entries_; }
  Result<std::vector<io::Digest>> digests(size_t index) const override;
  Result<> read(size_t index, uint64_t offset, std::span<std::byte> buffer) const override;
  Result<bool> is_current() const override;
  // Which save it is may be told later than its files are there. Returns whether there is more to tell than before.
  Result<bool> look_at_save();
  const meta::formats::CompletenessFacts& facts() const override { return facts_; }
  meta::remote::Order order() const override { return order_; }
  const meta::remote::SaveFacts& save() const override { return save_; }

 private:
  struct File {
    meta::InodeNumber inode = 0;
    meta::BlobNumber blob = 0;
    bool operator==(const File&) const = default;
  };
  struct Tree {
    std::vector<meta::remote::Entry> entries;
    std::vector<File> files;  // of each entry
  };
  LocalStep(const Environment& environment, meta::InodeNumber step) : env_(environment), step_(step) {}
  Result<Tree> collect() const;
  Result<> add(const std::string& path, meta::InodeNumber inode, Tree& tree) const;
  Result<> take_digests(const meta::Pause& pause) const;
  Result<io::Digest> root_of(size_t index) const;
  Result<std::string> judge();

  const Environment env_;
  const meta::InodeNumber step_;
  std::string tag_;
  meta::remote::Order order_;
  std::string own_attempt_;  // that its own files name
  meta::remote::SaveFacts save_;
  std::vector<meta::remote::Entry> entries_;
  std::vector<File> files_;
  std::vector<io::Digest> roots_;  // meta::BlobDigest::root of each file, as it was
  meta::formats::CompletenessFacts facts_;
};

}  // namespace ckptfs::fs
