// The views of a mount: /views and the directories in it that lead to steps, and for each step its view, made when it
// is first asked for. A live step's view follows its files: it is made anew when they have changed; a sealed one's is
// made once.
//
// Thread safety: all of it. Lock: mutex_ (guards the cache; a leaf). Two that ask for the same view at the same time
// may both make it: one is kept.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fs/views/view.h"
#include "meta/store.h"
#include "meta/tree.h"

namespace ckptfs::fs::views {

// The view of one step as of some moment.
struct StepView {
  StepView(InodeNumber step_inode, Source source, std::vector<InodeNumber> file_inodes, timespec changed,
           bool is_sealed)
      : step(step_inode), inodes(std::move(file_inodes)), time(changed), sealed(is_sealed), view(std::move(source)) {}

  const InodeNumber step;
  const std::vector<InodeNumber> inodes;  // of the step's files, as the view counts them
  const timespec time;                    // when the newest of them changed
  const bool sealed;
  const View view;

  // What a file of the view holds; shared by all who have it open.
  std::shared_ptr<const Content> content(NodeNumber node) const;

 private:
  mutable std::mutex mutex_;
  mutable std::unordered_map<NodeNumber, std::weak_ptr<const Content>> contents_;  // guarded by mutex_
};

class Views {
 public:
  explicit Views(meta::Store& store) : store_(store), tree_(store.tree()) {}

  // A node of a view, or a directory that leads to some.
  struct Found {
    InodeNumber number = 0;
    std::shared_ptr<const StepView> of;  // none: it leads to steps
    NodeNumber node = 0;
    struct stat stat {};
  };
  // ENOENT: there is none of that name or number.
  Result<Found> lookup(InodeNumber directory, const std::string& name);
  Result<Found> find(InodeNumber number);
  // Whether the kernel may keep what it has of this file: it was last opened in the same view. Notes that it is now.
  bool may_keep(const Found& found);
  // Without "." and "..". Sorted by name.
  Result<std::vector<meta::DirectoryEntry>> list(InodeNumber directory);

 private:
  struct Cached {
    std::shared_ptr<const StepView> view;
    std::string fingerprint;  // of the files it was made from
    std::chrono::steady_clock::time_point checked;
    std::chrono::steady_clock::time_point used;
  };

  Result<std::shared_ptr<const StepView>> of_step(InodeNumber step);
  Result<Found> leading(InodeNumber real);
  Result<Found> in_view(std::shared_ptr<const StepView> view, NodeNumber node) const;
  Result<bool> leads_to_steps(InodeNumber directory) const;
  std::shared_ptr<const StepView> cached(InodeNumber step);
  void keep(InodeNumber step, Cached cached);

  static constexpr size_t kMostCached = 8;
  static constexpr size_t kMostOpened = 65536;
  static constexpr std::chrono::milliseconds kBelieved{200};  // how long a live step's files are taken for unchanged

  meta::Store& store_;
  meta::Tree& tree_;
  std::mutex mutex_;
  std::unordered_map<InodeNumber, Cached> cache_;  // guarded by mutex_
  // Guarded by mutex_; by inode number: the view in which a file was opened last.
  std::unordered_map<InodeNumber, std::weak_ptr<const StepView>> opened_;
};

}  // namespace ckptfs::fs::views
