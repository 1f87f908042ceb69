// Adopts files of a mount: begins the inline dedup of a file that was just made or emptied
// (fs/adopt/inline_block_dedup.h).
//
// Thread safety: all of it; takes no lock of its own.
#pragma once

#include <memory>
#include <string>

#include "fs/adopt/inline_block_dedup.h"
#include "fs/adopt/source_predictor.h"
#include "fs/base/counters.h"
#include "fs/open/open_files.h"
#include "meta/tree/tree.h"

namespace ckptfs::fs {

class Adopter {
 public:
  Adopter(meta::Tree& tree, OpenFileTable& files, Counters& counters)
      : predictor(tree, [&files](InodeNumber inode) { return files.name_of(inode); }),
        tree_(tree),
        files_(files),
        counters_(counters) {}

  SourcePredictor predictor;

  // May an open with these flags, of a file that was just made or emptied, adopt? Not with O_DIRECT (as DeepSpeed opens
  // swap files), O_SYNC, O_DSYNC or O_APPEND.
  static bool may_adopt(int flags);
  // Null: nothing is predicted, or none of it can be used; or it is a swap file whose writer may map it, and then would
  // overwrite shared blocks where nobody sees that the space for them is missing.
  std::unique_ptr<InlineBlockDedup> begin(const OpenFile& file, const meta::InodeRecord& record,
                                          const std::string& name, const meta::Caller& writer, int flags);
  // The handle that wrote has gone.
  void end(std::unique_ptr<InlineBlockDedup> dedup);

 private:
  Result<InlineBlockDedup::Source> open_source(InodeNumber source);
  Result<> begin_sharing(InodeNumber target, const InlineBlockDedup::Source& source);
  Result<> check(const InlineBlockDedup::Source& source, Result<> cloned);

  meta::Tree& tree_;
  OpenFileTable& files_;
  Counters& counters_;
};

}  // namespace ckptfs::fs
