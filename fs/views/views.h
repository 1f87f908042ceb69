// The views of a mount: /views and the directories in it that lead to steps, and for each step its view, made when it
// is first asked for. A live step's view follows its files: it is made anew when they have changed; a sealed one's is
// made once. What was found in the files' headers is kept in the index (meta/tensor_maps.h).
//
// Thread safety: all of it. Locks: a turn for each step whose view is being made, then mutex_ (guards what is below it;
// a leaf).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fs/views/files_of_step.h"
#include "fs/views/view.h"
#include "meta/store.h"
#include "meta/tree.h"

namespace ckptfs::fs::views {

// The view of one step as of some moment.
struct StepView {
  StepView(InodeNumber step_inode, Source source, std::vector<Made> made_from, timespec changed, bool is_sealed,
           bool has_no_names)
      : step(step_inode),
        files(std::move(made_from)),
        time(changed),
        sealed(is_sealed),
        nameless(has_no_names),
        version(source.version),
        view(std::move(source)) {}

  const InodeNumber step;
  const std::vector<Made> files;  // of the step, as the view counts them
  const timespec time;            // when the newest of them changed
  const bool sealed;              // it will never be another one
  const bool nameless;            // swap files only: another step of the run may tell names
  const std::string version;      // of the files' bytes and the names: another one is another view
  const View view;

  // What a file of the view holds; shared by all who have it open.
  std::shared_ptr<const Content> content(NodeNumber node) const;

 private:
  mutable std::mutex mutex_;
  mutable std::unordered_map<NodeNumber, std::weak_ptr<const Content>> contents_;  // guarded by mutex_
};

class Views {
 public:
  // `is_written`: somebody has the file open for writing.
  Views(meta::Store& store, std::function<bool(InodeNumber)> is_written)
      : store_(store), tree_(store.tree()), is_written_(std::move(is_written)) {}

  // A node of a view, or a directory that leads to some.
  struct Found {
    InodeNumber number = 0;
    std::shared_ptr<const StepView> of;  // none: a step itself, or what leads to steps
    NodeNumber node = 0;
    struct stat stat {};
  };
  // ENOENT: there is none of that name or number. ESTALE: it was of an earlier version of the step's view, and whoever
  // looks for its name again finds the one that is (the kernel does, by itself).
  Result<Found> lookup(InodeNumber directory, const std::string& name);
  Result<Found> find(InodeNumber number);
  // To be opened: with a look at the step's files, and of nothing but the version that they are now.
  Result<Found> find_now(InodeNumber number);
  // The file is being opened: until it is closed find() knows it, whatever becomes of the step.
  void opened(InodeNumber number, std::weak_ptr<const StepView> view);
  // Without "." and "..". Sorted by name.
  Result<std::vector<meta::DirectoryEntry>> list(InodeNumber directory);

 private:
  using Clock = std::chrono::steady_clock;
  struct Cached {
    std::shared_ptr<const StepView> view;
    std::string fingerprint;  // of the files it was made from
    Clock::time_point made;
    Clock::time_point checked;
    Clock::time_point used;
  };

  // A file that is open for writing keeps things out of the view, and may just have been closed: the kernel tells the
  // mount of a close after close() has returned. A patient look waits for that a little.
  enum class Look { believing, again, patient };
  Result<std::shared_ptr<const StepView>> of_step(InodeNumber step, Look look = Look::believing);
  Result<Clock::time_point> collect(InodeNumber step, Look look, std::optional<FilesOfStep>& files) const;
  std::shared_ptr<const StepView> as_it_was(InodeNumber step, const FilesOfStep& files, Clock::time_point now);
  bool was_made(InodeNumber step, const FilesOfStep& files);
  Result<meta::formats::TensorMap> map_of(InodeNumber step, const FilesOfStep& files);
  Result<meta::formats::TensorMap> with_names(InodeNumber step, const FilesOfStep& files, meta::formats::TensorMap map);
  // A step, or a directory that leads to steps; neither is looked into.
  Result<Found> real_directory(InodeNumber real);
  Result<bool> is_step_of_series(InodeNumber real, const meta::InodeRecord& record) const;
  Result<Found> in_view(std::shared_ptr<const StepView> view, NodeNumber node) const;
  Result<bool> leads_to_steps(InodeNumber directory) const;
  std::shared_ptr<const StepView> cached(InodeNumber step, Look look, Clock::time_point asked);
  std::shared_ptr<std::mutex> turn_for(InodeNumber step);
  void keep(InodeNumber step, Cached cached);

  static constexpr size_t kMostCached = 8;
  static constexpr size_t kMostMemory = size_t{32} << 20;  // of cached views, but for the last
  static constexpr std::chrono::seconds kNameless{1};      // before names are looked for again
  static constexpr size_t kMostOpened = 65536;
  static constexpr std::chrono::milliseconds kClosing{100};  // of a patient look
  static constexpr std::chrono::milliseconds kClosingLook{1};
  static constexpr std::chrono::milliseconds kBelieved{200};  // how long a live step's files are taken for unchanged

  meta::Store& store_;
  meta::Tree& tree_;
  const std::function<bool(InodeNumber)> is_written_;
  std::mutex mutex_;
  std::unordered_map<InodeNumber, Cached> cache_;                          // guarded by mutex_
  std::unordered_map<InodeNumber, std::weak_ptr<std::mutex>> turns_;       // guarded by mutex_
  std::unordered_map<InodeNumber, std::weak_ptr<const StepView>> opened_;  // guarded by mutex_; by inode number
};

}  // namespace ckptfs::fs::views
