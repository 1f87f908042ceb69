#include "meta/steps/save.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "io/clone.h"
#include "io/fault.h"
#include "io/lease.h"
#include "io/parallel.h"
#include "meta/names.h"
#include "meta/steps/save_step.h"
#include "meta/time.h"
#include "meta/tree/unpublished.h"

namespace ckptfs::meta {
namespace {

constexpr unsigned kSaveThreads = 4;
// Clones contend for the reference counts of XFS's allocation group. More than two threads would sleep waiting for each
// other.
constexpr unsigned kCloneThreads = 2;

// So many source files are held open from the plan to the clone. Further files are opened again for each use.
size_t held_open() {
  constexpr rlim_t kMost = 4096;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return std::min(kMost, limit.rlim_cur / 4);
}

// One save, from the request to the published step.
class Save {
 public:
  Save(Store& store, const SaveRequest& request)
      : store_(store), tree_(store.tree()), request_(request), who_(request.who()) {}

  Result<SaveResult> run() {
    const auto begun = std::chrono::steady_clock::now();
    TRY(check_tag(request_.tag));
    TRY_ASSIGN(source_, save_source(store_, request_.series, who_));
    TRY(step_.inspect());
    auto taken = take();
    if (!taken) {
      abandon();
      return std::move(taken).error();
    }
    if (result_.already_saved) {
      TRY(tree_.sync());  // the save that made the step may have failed to sync it
      return std::move(result_);
    }
    if (auto published = finish(); !published) {
      abandon();
      return std::move(published).error();
    }
    store_.spares().prepare(result_.cloned);
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return std::move(result_);
  }

 private:
  // Plans, writes back, closes the gate, clones, opens the gate. Nothing shows in the tree yet.
  Result<> take() {
    TRY_ASSIGN(SavePlan plan, plan_save(tree_, source_, who_));
    take_over(plan);
    TRY(write_back());
    // Reads all inodes, so it is done before the gate is closed.
    if (tree_.short_of_space()) TRY(tree_.recount_cow_reserves());
    tree_.gate().close(plan.guarded);
    auto cloned = clone_behind_gate(std::move(plan));
    tree_.gate().open();
    return cloned;
  }

  // Takes the files of a new plan. Files that an earlier plan has opened stay open.
  void take_over(SavePlan& plan) {
    version_ = plan.version;
    std::unordered_map<BlobNumber, io::Fd> open;
    for (SaveFile& taken : taken_) open.try_emplace(taken.plan.record.blob, std::move(taken.live));
    taken_.clear();
    taken_.reserve(plan.files.size());
    for (PlannedFile& file : plan.files) {
      SaveFile& taken = taken_.emplace_back();
      if (const auto at = open.find(file.record.blob); at != open.end()) taken.live = std::move(at->second);
      taken.plan = std::move(file);
    }
  }

  // Returns the descriptor that is held, or opens one into `own`.
  Result<int> open_live(SaveFile& taken, io::Fd& own) const {
    if (taken.live) return taken.live.get();
    TRY_ASSIGN(io::Fd fd, tree_.open_blob(taken.plan.source, taken.plan.record, O_RDONLY));
    const int number = fd.get();
    const auto position = static_cast<size_t>(&taken - taken_.data());
    (position < held_open_ ? taken.live : own) = std::move(fd);
    return number;
  }

  // Writes back before the gate is closed, so that the clones behind it find little to write. A file that is gone since
  // the plan is in no later plan.
  Result<> write_back() {
    std::vector<InodeNumber> open;
    for (const SaveFile& taken : taken_) {
      if (store_.open_files().open_for_writing(taken.plan.source)) open.push_back(taken.plan.source);
    }
    if (!open.empty()) TRY(store_.open_files().write_back(open));
    return for_each_taken([this](SaveFile& taken) -> Result<> {
      constexpr unsigned kFlags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
      io::Fd own;
      const auto live = open_live(taken, own);
      if (!live) return tree_.inode(taken.plan.source) ? Result<>(live.error()) : Result<>(success());
      if (taken.plan.record.saved_blob != 0) return success();
      if (::sync_file_range(live.value(), 0, 0, kFlags) == 0) return success();
      const Error failed = last_error(taken.plan.name);
      tree_.write_back_failed(taken.plan.source, taken.plan.record, live.value(), failed);
      return failed;
    });
  }

  // An error here is a failure of the save. So an errno that elsewhere means a refusal becomes EIO.
  Result<> for_each_taken(const std::function<Result<>(SaveFile&)>& work, unsigned threads = kSaveThreads) {
    auto done = io::for_each_parallel(taken_.size(), threads, [&](size_t i) { return work(taken_[i]); });
    if (done || !is_refusal(done.error())) return done;
    return Error(EIO, done.error().message());
  }

  // Plans again until the plan is stable. Folders that the gate guards get no new names, so that takes a round or two.
  Result<> settle_plan(SavePlan& plan) {
    while (plan.version != tree_.version()) {
      TRY_ASSIGN(SavePlan again, plan_save(tree_, source_, who_));
      const bool settled = again.guarded == plan.guarded;
      plan = std::move(again);
      take_over(plan);
      if (settled) break;
      tree_.gate().close(plan.guarded);
    }
    return success();
  }

  Result<> clone_behind_gate(SavePlan plan) {
    TRY(settle_plan(plan));
    if (taken_.empty()) {
      return Error(ENOENT, tree_.path_of(source_) + ": it holds no swap files yet; save after the first step");
    }
    TRY(for_each_taken([this](SaveFile& taken) { return inspect(taken); }));
    choose_between_dtypes();
    find_second_names();
    find_saved();
    if (step_.holds_swap_state()) {
      TRY(step_.compare_with(source_, taken_));
      result_.already_saved = true;
      return success();
    }
    TRY(reserve());
    const auto cloned = for_each_taken([this](SaveFile& taken) { return clone_one(taken); }, kCloneThreads);
    tree_.end_cloning();
    TRY(cloned);
    for (SaveFile& taken : taken_) {
      if (taken.same == nullptr) continue;
      taken.blob = taken.same->blob;
      taken.stat = taken.same->stat;
    }
    return success();
  }

  Result<> inspect(SaveFile& taken) const {
    io::Fd own;
    const auto live = open_live(taken, own);
    if (!live) {
      return Error(live.error().errno_value(), step_.path() + ": " + taken.plan.name + " cannot be read: " +
                                                   live.error().message() + "; nothing was saved");
    }
    TRY(tree_.refuse_suspect(taken.plan.source, taken.plan.record));
    taken.writer_open = store_.open_files().open_for_writing(taken.plan.source);
    TRY_ASSIGN(const struct stat st, io::stat_fd(live.value()));
    taken.cow_reserve = cow_reserve_of_clone(st);
    taken.mtime = st.st_mtim;
    if (!taken.writer_open) TRY_SET(taken.writer_open, io::has_writer(live.value()));
    return success();
  }

  // A run that changed its dtype has left its old files. The file that was written last is the current one.
  void choose_between_dtypes() {
    std::vector<SaveFile> chosen;
    chosen.reserve(taken_.size());
    for (SaveFile& taken : taken_) {
      const PlannedFile& plan = taken.plan;
      const PlannedFile* const last = chosen.empty() ? nullptr : &chosen.back().plan;
      if (last == nullptr || last->name != plan.name || last->folder != plan.folder || last->group != plan.group) {
        chosen.push_back(std::move(taken));
        continue;
      }
      result_.warnings.push_back(plan.folder + "/" + plan.name +
                                 " is there for two dtypes; the one written last is taken");
      if (later(taken.mtime, chosen.back().mtime)) chosen.back() = std::move(taken);
    }
    taken_ = std::move(chosen);
  }

  // Finds hard links, so that a file with several names is cloned once.
  void find_second_names() {
    std::unordered_map<InodeNumber, const SaveFile*> first;
    for (SaveFile& taken : taken_) {
      const auto [at, fresh] = first.try_emplace(taken.plan.source, &taken);
      taken.same = fresh ? nullptr : at->second;
    }
  }

  // A file that has not changed since its last save names the blob of that save again.
  void find_saved() {
    for (SaveFile& taken : taken_) {
      const BlobNumber saved = taken.plan.record.saved_blob;
      if (taken.writer_open || saved == 0) continue;
      const auto blob = store_.index().blob(saved);
      if (blob && blob.value().state == BlobState::frozen) taken.blob = saved;
    }
  }

  // Takes numbers for the clones, those of spare blobs first, and marks them as tentative: a crash before the step is
  // published deletes them. From here on the COW reserve of each live file to be cloned is all that it holds, and it
  // counts as saved until somebody opens it for writing. If the save fails, its blobs are never frozen, and
  // find_saved() ignores them.
  Result<> reserve() {
    TRY(check_space());
    const auto count = static_cast<size_t>(std::count_if(
        taken_.begin(), taken_.end(), [](const SaveFile& taken) { return taken.blob == 0 && taken.same == nullptr; }));
    tentative_ = store_.spares().take(count);
    const size_t spares = tentative_.size();
    Tree::Change change = tree_.begin();
    const bool as_planned = store_.index().commits() == version_;
    std::ranges::copy(change.promise_blobs(count - spares), std::back_inserter(tentative_));
    size_t used = 0;
    std::unordered_set<InodeNumber> cloned;
    for (SaveFile& taken : taken_) {
      if (taken.blob != 0 || taken.same != nullptr) continue;
      cloned.insert(taken.plan.source);
      taken.spare = used < spares;
      taken.blob = tentative_[used++];
      taken.cloned = true;
      InodeRecord record = taken.plan.record;
      if (!as_planned) TRY_SET(record, store_.index().inode(taken.plan.source));
      record.saved_blob = taken.writer_open ? 0 : taken.blob;
      change.set_cow_reserve(record, taken.cow_reserve);
      change.batch.put(taken.plan.source, record);
    }
    change.begin_cloning(cloned);
    auto reserved = tree_.commit(std::move(change));
    if (!reserved) tree_.end_cloning();
    return reserved;
  }

  // ENOSPC: the store has no room for the COW reserves after the save (meta/blobs/space.h).
  Result<> check_space() {
    if (enough_space()) return success();
    for (const SaveFile& taken : taken_) tree_.finished_writing(taken.plan.source);
    tree_.reclaim_space();
    for (SaveFile& taken : taken_) TRY_SET(taken.plan.record, tree_.inode(taken.plan.source));
    if (enough_space()) return success();
    const SpaceReport space = store_.space();
    return Error(ENOSPC, step_.path() + ": not enough space: overwriting the swap files would need " +
                             std::to_string(cow_reserve_after_save() >> 20) + " MiB after this save, " +
                             std::to_string(space.free >> 20) + " MiB are free (without the reserve of " +
                             std::to_string(space.reserve >> 20) + " MiB); remove steps, or use a larger store");
  }
  uint64_t cow_reserve_after_save() const {
    uint64_t cow_reserve = store_.space().cow_reserve;
    for (const SaveFile& taken : taken_) {
      if (taken.blob == 0 && taken.same == nullptr) cow_reserve += taken.cow_reserve - taken.plan.record.cow_reserve;
    }
    return cow_reserve;
  }
  bool enough_space() const { return store_.space().free >= cow_reserve_after_save(); }

  Result<> clone_one(SaveFile& taken) const {
    if (taken.same != nullptr) return success();
    if (!taken.cloned) {
      TRY_ASSIGN(taken.stat, step_.unless_gone(store_.blobs().stat(taken.blob)));
      return success();
    }
    auto clone = taken.spare ? store_.blobs().open(taken.blob, O_RDWR) : store_.blobs().create(taken.blob);
    TRY_ASSIGN(const io::Fd frozen, std::move(clone));
    io::Fd own;
    TRY_ASSIGN(const int live, open_live(taken, own));
    if (auto cloned = io::clone(live, frozen.get()); !cloned) {
      TRY(tree_.sync_file(taken.plan.source, live));  // tells whether the write-back has failed
      return cloned;
    }
    TRY_ASSIGN(taken.stat, io::stat_fd(frozen.get()));
    return success();
  }

  // Makes the clones durable, publishes the step in one batch, and makes that durable.
  Result<> finish() {
    for (SaveFile& taken : taken_) taken.live.reset();
    TRY(io::fault_point("save.after_clones"));
    if (!tentative_.empty()) TRY(tree_.write_back().sync_all());
    for (const SaveFile& taken : taken_) TRY(tree_.refuse_suspect(taken.plan.source, taken.plan.record));
    TRY(io::fault_point("save.before_publish"));
    TRY(step_.publish(source_, taken_));
    tentative_.clear();
    TRY(tree_.sync());
    return io::fault_point("save.after_publish");
  }

  // A save that failed leaves nothing: its clones are doomed.
  void abandon() {
    taken_.clear();
    doom_unpublished(tree_, tentative_, "clones of a save that failed");
    tentative_.clear();
  }

  Store& store_;
  Tree& tree_;
  const SaveRequest& request_;
  const Credentials who_;
  InodeNumber source_ = 0;
  const size_t held_open_ = held_open();
  uint64_t version_ = 0;  // of the tree that taken_ was planned from
  std::vector<SaveFile> taken_;
  std::vector<BlobNumber> tentative_;
  SaveResult result_;
  SaveStep step_{store_, request_, result_};
};

}  // namespace

bool is_refusal(const Error& error) {
  constexpr std::array kRefusals{EINVAL, EEXIST, ENOENT, ENOTDIR, EPERM, EACCES, ENAMETOOLONG};
  return std::ranges::count(kRefusals, error.errno_value()) != 0;
}

Result<SaveResult> save(Store& store, const SaveRequest& request) {
  const io::MutexLock one_at_a_time(store.save_mutex());
  constexpr int kTries = 5;  // EAGAIN: an old step whose blobs it names was removed meanwhile
  auto result = Save(store, request).run();
  for (int i = 1; i < kTries && !result && result.error().errno_value() == EAGAIN; ++i) {
    result = Save(store, request).run();
  }
  return result;
}

}  // namespace ckptfs::meta
