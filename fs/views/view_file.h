// Open files of views. All opens of one file share a ViewFile. Its first open decides in which of two ways it is read:
//   - As a BlockFile, on a mount in passthrough mode, if nobody writes the files that it is made from. A BlockFile is a
//     file without a name that shares the blocks of the step's files (shared_content.h). The kernel reads it by itself,
//     at the rate of the disk, and a copy of it within the mount shares the blocks, too.
//   - By the daemon, piece by piece, in all other cases. Then each of the step's files counts as open, so that its
//     content stays when the step is removed. The kernel may keep the pages over opens as long as the view is the same.
//
// The last few BlockFiles are kept when they are closed, since they own the pages in the kernel's cache. A BlockFile is
// dropped when one of the files whose blocks it shares is about to change or to be removed, and when blocks are
// deduplicated. Those who have it open keep it.
//
// Thread safety: all of it. Locks: a turn for each file that is being opened first, then ViewFiles::mutex_ (guards what
// is below it; a leaf).
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fs/base/counters.h"
#include "fs/base/user_budget.h"
#include "fs/open/backing_ids.h"
#include "fs/open/open_files.h"
#include "fs/open/open_modes.h"
#include "fs/views/views.h"
#include "io/mutex.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

// What open files of views are made with.
struct ViewFileParts {
  meta::Store& store;
  meta::Tree& tree;
  OpenFileTable& files;
  const BackingIds& backing_ids;
  const OpenModes& modes;
  Counters& counters;
};

// A content that shares blocks of the step's files, registered with the kernel as a backing file.
class BlockFile {
 public:
  BlockFile(const BackingIds& backing_ids, io::Fd file, int backing_id, std::unordered_set<InodeNumber> made_from)
      : backing_ids_(backing_ids), file_(std::move(file)), backing_id_(backing_id), made_from_(std::move(made_from)) {}
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;
  ~BlockFile();

  int descriptor() const { return file_.get(); }
  int backing_id() const { return backing_id_; }
  const std::unordered_set<InodeNumber>& made_from() const { return made_from_; }

 private:
  const BackingIds& backing_ids_;
  const io::Fd file_;
  const int backing_id_;
  const std::unordered_set<InodeNumber> made_from_;
};

class ViewFile {
 public:
  // `have_shared` is set before blocks are shared. `kept`: the file's BlockFile, if there is one already.
  ViewFile(const ViewFileParts& parts, std::atomic<bool>& have_shared, const views::Views::ViewNode& found,
           std::shared_ptr<const BlockFile> kept);
  // To be called right after the constructor. ESTALE: a file that it is made from has changed since the view was made.
  Result<> begin();
  ViewFile(const ViewFile&) = delete;
  ViewFile& operator=(const ViewFile&) = delete;
  ~ViewFile();

  const std::shared_ptr<const views::StepView>& view() const { return view_; }
  uint64_t size() const { return content_->size(); }
  // To be called at each open. The content counts for the user who opens the file first. EMFILE: the user holds too
  // much.
  Result<> claim(UserBudget& memory, uint32_t user);
  uint64_t descriptors() const { return 1 + sources_.size(); }
  // Null: the daemon reads the file.
  const std::shared_ptr<const BlockFile>& blocks() const { return blocks_; }
  // Does read() return at once? It does not if the bytes come from many small pieces.
  bool reads_quickly(uint64_t offset, size_t size) const {
    return blocks_ || content_->parts_of(offset, size) <= kMostParts;
  }
  // As Content::read(), but the error names the step's file.
  Result<size_t> read(std::span<std::byte> buffer, uint64_t offset) const;
  // Has a file that it is made from changed or gone since it was opened, or is somebody writing such a file?
  Result<bool> is_outdated() const;
  // The step's files need not count as open any more.
  void close_sources();

 private:
  static constexpr size_t kMostParts = 256;

  struct Source {
    std::shared_ptr<OpenFile> file;
    uint64_t changes = 0;  // OpenFile::changes when it was opened
  };

  Result<> share();
  void not_shared(const Error& why) const;
  Result<bool> is_written(uint32_t file) const;
  bool is_as_it_was(uint32_t file) const;
  Result<bool> has_changed(uint32_t file) const;
  Result<OpenFileTable::Backing> backing(uint32_t file) const;
  Result<size_t> read_piece(uint32_t file, std::span<std::byte> buffer, uint64_t offset) const;

  const ViewFileParts parts_;
  std::atomic<bool>& have_shared_;
  const std::shared_ptr<const views::StepView> view_;
  const std::shared_ptr<const views::Content> content_;
  std::unordered_map<uint32_t, Source> sources_;  // by their index in the view
  std::shared_ptr<const BlockFile> blocks_;
  io::Mutex mutex_;
  std::optional<views::StepView::Hold> hold_ GUARDED_BY(mutex_);
};

// What the kernel holds for one open.
struct ViewHandle {
  DescriptorBudget::Claim claim;
  std::shared_ptr<ViewFile> file;
};

class ViewFiles {
 public:
  explicit ViewFiles(const ViewFileParts& parts) : parts_(parts) {}

  // Returns the ViewFile that all opens of the file share. ESTALE: other bytes of the same inode number are open.
  Result<std::shared_ptr<ViewFile>> open(const views::Views::ViewNode& found);
  // Does open() return at once? It does not if it writes a header of many tensors, nor if blocks may have to be shared
  // first, since what was just written must reach the disk before.
  bool opens_quickly(const views::Views::ViewNode& found) const;
  // Keeps no BlockFile any more that shares blocks with this file. To be called before or right after the file changes
  // or is removed.
  void drop_blocks_of(InodeNumber inode);
  void drop_all_blocks();
  // Has any BlockFile been made since the mount? Then blocks may be flagged as shared that no other file of the tree
  // has.
  bool have_shared() const { return have_shared_; }

 private:
  struct Kept {
    InodeNumber number = 0;  // of the file of the view
    std::string version;     // of the step's view
    std::shared_ptr<const BlockFile> blocks;
  };

  static constexpr size_t kMostKept = 32;
  static constexpr size_t kManyOpen = 1024;  // before those that are closed are looked for

  Result<std::shared_ptr<ViewFile>> make(const views::Views::ViewNode& found);
  // Null: nobody has the file open.
  Result<std::shared_ptr<ViewFile>> known(const views::Views::ViewNode& found) const;
  std::shared_ptr<const BlockFile> kept(const views::Views::ViewNode& found) const;
  std::shared_ptr<io::Mutex> turn_for(InodeNumber number);
  void keep(Kept kept);
  template <class Predicate>
  void drop_blocks_if(const Predicate& predicate);

  const ViewFileParts parts_;
  std::atomic<bool> have_shared_{false};
  std::atomic<bool> keeps_any_{false};     // is kept_ not empty?
  std::atomic<uint64_t> drops_of_all_{0};  // how often
  mutable io::Mutex mutex_;
  std::unordered_map<InodeNumber, std::weak_ptr<ViewFile>> open_ GUARDED_BY(mutex_);    // by its own number
  std::unordered_map<InodeNumber, std::weak_ptr<io::Mutex>> turns_ GUARDED_BY(mutex_);  // likewise
  std::deque<Kept> kept_ GUARDED_BY(mutex_);                                            // the last one made last
};

}  // namespace ckptfs::fs
