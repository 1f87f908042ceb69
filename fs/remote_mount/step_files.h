// The files of a step as a tree: those of all slots together, or those of one. Constant once made; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/result.h"
#include "meta/remote/remote_step.h"

namespace ckptfs::fs::remote_mount {

class StepFiles {
 public:
  // `files` is of the step, which must outlive this. EBADMSG: a file lies in no folder. EOVERFLOW: too many.
  static Result<StepFiles> make(const meta::remote::RemoteStep& step, meta::remote::Union files);

  const meta::remote::Union& list() const { return files_; }
  // Null: there is no such index.
  const meta::remote::UnionEntry* at(uint32_t index) const {
    return index < files_.entries.size() ? &files_.entries[index] : nullptr;
  }
  std::optional<uint32_t> child(uint32_t folder, std::string_view name) const;
  // The indices of what is in the folder.
  std::vector<uint32_t> children(uint32_t folder) const;
  uint32_t parent(uint32_t index) const { return parents_[index]; }
  size_t memory() const { return memory_; }

 private:
  explicit StepFiles(meta::remote::Union files) : files_(std::move(files)) {}
  std::optional<uint32_t> find(std::string_view path) const;

  meta::remote::Union files_;                            // the first is the step's own folder, ""
  std::vector<uint32_t> parents_;                        // of each
  std::vector<std::pair<uint32_t, uint32_t>> children_;  // folder and child, sorted
  size_t memory_ = 0;                                    // bytes
};

// The last name of a path.
std::string_view name_in(std::string_view path);

}  // namespace ckptfs::fs::remote_mount
