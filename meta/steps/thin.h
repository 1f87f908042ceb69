// Thinning, the change: new files take the place of files of a step, in one batch behind a closed gate
// (meta/tree/gate.h). The caller syncs it. What the new files hold is made before, by the caller (fs/steps/thinner.h),
// in blobs that are promised to this change. A crash before the change leaves the step as it was, and deletes what was
// promised. A crash after it leaves the thin step.
//
// The step's directory stays what it is, with its pin, metrics, xattrs and time. A sealed step stays sealed: its new
// files are frozen. Whoever has an old file open keeps it until it is closed.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "meta/store/store.h"
#include "meta/tree/tree.h"

namespace ckptfs::meta {

struct NewFile {
  std::string name;  // at the top of the step
  BlobNumber blob = 0;
  uint32_t mode = 0;  // permission bits
  uint32_t uid = 0;
  uint32_t gid = 0;
  timespec time{};  // atime and mtime
};

struct Thinning {
  InodeNumber step = 0;
  std::vector<NewFile> files;
  std::set<std::string> going;  // regular files, by their paths below the step
  // Called behind the gate: does the step still hold the files that the new ones were made from, and does nobody write
  // to them? An error ends the change.
  std::function<Result<>()> check;
};

// What has no name any more. The files are gone once nobody has them open; the directories are out of the tree with all
// that is in them (Tree::purge).
struct Thinned {
  std::vector<Dropped> files;
  std::vector<InodeNumber> directories;
  std::vector<std::pair<InodeNumber, std::string>> names;  // folder, name: what they lead to has changed
};

// The content of the blobs must be durable before. The change is not durable on return (Tree::sync). If it fails, the
// blobs are deleted. EPERM: the step is pinned. EBUSY: something in the step has changed meanwhile.
// EEXIST: a name is taken by something that stays.
Result<Thinned> thin(Store& store, const Thinning& thinning);

}  // namespace ckptfs::meta
