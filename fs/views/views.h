// The views of a mount: /views and the directories in it that lead to steps, and for each step its view, made when it
// is first asked for.
//
// From a step to a READ:
//   - meta/formats reads the headers of the step's files and makes a *tensor map*: which bytes of which files each
//     state of each parameter is. A map without problems is kept in the index (meta/steps/tensor_maps.h) until the
//     files are others.
//   - View (view.h) makes a tree of nodes of the map. A node's inode number tells the step and the node (numbers.h);
//     the node's own number comes from its path, so both stay over mounts.
//   - Requests about such an inode go to a table of operations of their own (fs/ops/views.cc). What would change it is
//     EROFS.
//   - An open of a file makes its Content (content.h), which makes the bytes of each read, cast to another type where
//     asked (cast.h); or the file shares the blocks of the step (view_file.h).
//
// A live step's view follows its files: it is made anew when they have changed. A sealed step's view is made once. The
// kernel caches nothing of a live step's view. Of a sealed step's view it caches everything except whether the step
// exists.
//
// One thread at a time makes a view: a lane of one of the users who ask for the view (fs/base/user_lanes.h). The others
// wait without a thread. So no user waits for a view that they have not asked for, and no thread that serves requests
// waits for any view. Work that takes long is known before, and is done on a lane: a search of many names, an open that
// writes a header of many tensors, and a read of more than 256 pieces. One step is read at a time (fs/base/turns.h).
// Each view and each list of names that a user has open takes memory of the daemon. Past the user's share the next open
// is EMFILE (fs/base/user_budget.h).
//
// A user may read a file that is made from several files only if the user may read each of them, through the folders on
// the way. A folder of a view is for users who may read what tells the names in it.
//
// A step that only `save` made has swap files only. Another step tells the names of its parameters, if the same
// processes wrote the swap files of both, and if these are the same by path and length (meta/formats/same_run.h).
//
// Thread safety: all of it. Locks: that of a StepView, under which a user's budget is claimed (fs/base/user_budget.h);
// that of Views, a leaf.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fs/base/turns.h"
#include "fs/base/user_budget.h"
#include "fs/base/user_lanes.h"
#include "fs/views/files_of_step.h"
#include "fs/views/view.h"
#include "io/mutex.h"
#include "meta/store/store.h"
#include "meta/tree/tree.h"

namespace ckptfs::fs::views {

// The view of one step as of some moment.
struct StepView {
  StepView(InodeNumber step_inode, Source source, const FilesOfStep& made_from, bool is_sealed, bool has_no_names)
      : step(step_inode),
        files(made_from.made()),
        fingerprint(made_from.fingerprint()),
        time(made_from.time()),
        saved(made_from.saved_time()),
        sealed(is_sealed),
        nameless(has_no_names),
        version(source.version),
        view(std::move(source)) {}

  const InodeNumber step;
  const std::vector<SourceVersion> files;  // of the step, by their index in the view
  const std::string fingerprint;           // of them (FilesOfStep)
  const timespec time;                     // when the newest of them changed
  const timespec saved;                    // when the newest of them changed that is no note
  const bool sealed;                       // the view never changes
  const bool nameless;                     // of swap files only: another step of the run may tell names
  const std::string version;               // of the files' bytes and the names: with another version it is another view
  const View view;

  // The content of a file of the view. All who have the file open share it.
  std::shared_ptr<const Content> content(NodeNumber node) const;
  // The memory that an open file of the view takes: its own content, and the view itself as long as a file of it is
  // open. The view counts for the user who opened a file of it first. A view that is only cached counts for nobody.
  struct Hold {
    std::shared_ptr<const UserBudget::Claim> view;
    UserBudget::Claim content;
  };
  // The view and the content of the file that is opened first are one claim, so that a user who holds nothing gets any
  // view. That content counts as long as the view does. EMFILE: the user holds too much.
  Result<Hold> hold(UserBudget& memory, uint32_t user, uint64_t content) const;

 private:
  mutable io::Mutex mutex_;
  mutable std::weak_ptr<const UserBudget::Claim> claim_ GUARDED_BY(mutex_);
  mutable std::unordered_map<NodeNumber, std::weak_ptr<const Content>> contents_ GUARDED_BY(mutex_);
};

class Views {
 public:
  // `stop` is set when the mount ends. Then no view is made any more.
  Views(meta::Store& store, UserLanes& lanes, AskWriters ask_writers, Turns& readings, const std::atomic<bool>& stop)
      : store_(store),
        tree_(store.tree()),
        lanes_(lanes),
        ask_writers_(std::move(ask_writers)),
        readings_(readings),
        stop_(stop) {}

  // A node of a view, or a directory that leads to some.
  struct ViewNode {
    InodeNumber number = 0;
    std::shared_ptr<const StepView> of;  // none: a step itself, or what leads to steps
    NodeNumber node = 0;
    struct stat stat {};
  };
  template <class T>
  using Answer = std::function<void(Result<T>)>;
  // Each of these answers at once if it knows the answer already, else on a lane of the user's. ENOENT: there is no
  // node of that name or number. ESTALE: the number is of an earlier version of the step's view. A new lookup of the
  // name, which the kernel does by itself, finds the node of the current version.
  void lookup(InodeNumber directory, const std::string& name, uint32_t user, const Answer<ViewNode>& answer);
  void find(InodeNumber number, uint32_t user, const Answer<ViewNode>& answer);
  // For an open: inspects the step's files, and finds the node in their current version only.
  void find_now(InodeNumber number, uint32_t user, const Answer<ViewNode>& answer);
  // The entries without "." and "..", sorted by name.
  void list(InodeNumber directory, uint32_t user, const Answer<std::vector<meta::DirectoryEntry>>& answer);
  // The view of a step as its files are now.
  void step_view(InodeNumber step, uint32_t user, const Answer<std::shared_ptr<const StepView>>& answer) {
    with_view(step, Freshness::now, user, answer);
  }
  // Are the step's files still exactly those that the view was made from, and does nobody write to one? Reads the
  // index, and no file's content.
  Result<bool> is_current(const StepView& view) const;
  // The files of the step were exchanged, also if it is sealed. Its view is made anew.
  void forget(InodeNumber step);
  // The file is being opened. Until it is closed find() knows it, whatever becomes of the step.
  void opened(InodeNumber number, std::weak_ptr<const StepView> view);

 private:
  using Clock = std::chrono::steady_clock;
  struct Cached {
    std::shared_ptr<const StepView> view;
    Clock::time_point made;
    Clock::time_point checked;
    Clock::time_point used;
  };

  // Of a live step: `recent` takes its files as unchanged if they were inspected within kRecent, `now` inspects them.
  enum class Freshness { recent, now };
  using MadeView = Result<std::shared_ptr<const StepView>>;
  struct Waiting {
    uint32_t user = 0;
    std::function<void(const MadeView&)> done;
  };
  struct Making {
    bool running = false;
    std::vector<Waiting> waiting;  // for an inspection of the files that begins after they asked
  };

  void with_view(InodeNumber step, Freshness freshness, uint32_t user, std::function<void(const MadeView&)> done);
  void call_lane(InodeNumber step, uint32_t user);
  void serve(InodeNumber step);
  MadeView make(InodeNumber step);
  Result<Clock::time_point> collect(InodeNumber step, std::optional<FilesOfStep>& files) const;
  std::shared_ptr<const StepView> as_it_was(InodeNumber step, const FilesOfStep& files, Clock::time_point now);
  bool was_made(InodeNumber step, const FilesOfStep& files);
  Result<meta::formats::TensorMap> map_of(InodeNumber step, const FilesOfStep& files);
  Result<meta::formats::TensorMap> with_names(InodeNumber step, const FilesOfStep& files, meta::formats::TensorMap map);
  // The node of a step, or of a directory that leads to steps. Its entries are not read.
  Result<ViewNode> real_directory(InodeNumber real);
  void find_directory(InodeNumber real, uint32_t user, const Answer<ViewNode>& answer);
  Result<std::vector<meta::DirectoryEntry>> list_directory(InodeNumber real);
  static Result<std::vector<meta::DirectoryEntry>> entries_of(const StepView& view, NodeNumber node);
  Result<bool> is_step_of_series(InodeNumber real, const meta::InodeRecord& record) const;
  // Likewise, without reading names, of which a directory may have millions. None: only the names tell.
  Result<std::optional<bool>> is_step_by_record(InodeNumber real, const meta::InodeRecord& record) const;
  // Calls `then` with whether the directory is in the view of a step: at once, or on a lane of the user's.
  void with_kind(InodeNumber directory, uint32_t user, const Answer<bool>& then);
  void lookup_in(InodeNumber directory, bool in_step, const std::string& name, uint32_t user,
                 const Answer<ViewNode>& answer);
  Result<ViewNode> in_view(std::shared_ptr<const StepView> view, NodeNumber node) const;
  Result<ViewNode> child_in(std::shared_ptr<const StepView> view, NodeNumber directory, const std::string& name) const;
  Result<ViewNode> node_in(const MadeView& view, InodeNumber number);
  Result<std::unordered_set<InodeNumber>> leading_to_steps() const;
  std::shared_ptr<const StepView> cached(InodeNumber step, Freshness freshness, Clock::time_point asked);
  // Unless a step was forgotten since forgets() were `counted`: the view may be of its old files.
  void keep(InodeNumber step, Cached cached, uint64_t counted);
  uint64_t forgets() const;

  static constexpr size_t kMostCached = 8;
  static constexpr size_t kMostMemory = size_t{32} << 20;  // of cached views, except a single one
  static constexpr std::chrono::seconds kNameless{1};      // before names are looked for again
  static constexpr size_t kMostOpened = 65536;
  static constexpr std::chrono::milliseconds kClosingPoll{1};
  static constexpr std::chrono::seconds kMostClosing{1};    // writers may close one file after another
  static constexpr std::chrono::milliseconds kRecent{200};  // how long a live step's files are taken for unchanged

  meta::Store& store_;
  meta::Tree& tree_;
  UserLanes& lanes_;
  const AskWriters ask_writers_;
  Turns& readings_;
  const std::atomic<bool>& stop_;
  mutable io::Mutex mutex_;
  uint64_t forgets_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<InodeNumber, Cached> cache_ GUARDED_BY(mutex_);
  std::unordered_map<InodeNumber, Making> making_ GUARDED_BY(mutex_);
  std::unordered_map<InodeNumber, std::weak_ptr<const StepView>> opened_ GUARDED_BY(mutex_);  // by inode number
};

}  // namespace ckptfs::fs::views
