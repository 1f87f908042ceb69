#include "fs/open/walk.h"

#include <algorithm>
#include <sstream>

namespace ckptfs::fs {
namespace {

Result<> check(const meta::Tree& tree, const Credentials& who, meta::InodeNumber inode, unsigned wanted,
               const std::string& path) {
  TRY_ASSIGN(const meta::InodeRecord record, tree.inode(inode));
  if (may_access(who, record, wanted)) return success();
  return Error(EACCES, path + ": permission denied; ask its owner (uid " + std::to_string(record.uid) + ") or root");
}

class Walk {
 public:
  Walk(const meta::Tree& tree, const Credentials& who, unsigned wanted) : tree_(tree), who_(who), wanted_(wanted) {}

  // From now on counts files and folders that it cannot take in `count`, and goes on.
  void leave_out_into(uint64_t& count) { left_out_ = &count; }

  Result<> add(meta::InodeNumber inode, const std::string& path, unsigned depth = 0) {
    auto added = try_to_add(inode, path, depth);
    const int problem = added ? 0 : added.error().errno_value();
    if (left_out_ == nullptr || (problem != EACCES && problem != ELOOP)) return added;
    ++*left_out_;
    return success();
  }
  std::vector<FoundFile> take() {
    std::ranges::sort(files_, {}, &FoundFile::path);
    return std::move(files_);
  }

 private:
  Result<> try_to_add(meta::InodeNumber inode, const std::string& path, unsigned depth) {
    constexpr unsigned kDeepest = 256;  // levels of recursion
    if (depth > kDeepest) return Error(ELOOP, "folders lie too deep in each other");
    TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(inode));
    if (!may_access(who_, record, record.is_dir() ? kRead | kSearch : wanted_)) {
      return Error(EACCES,
                   path + ": permission denied; ask its owner (uid " + std::to_string(record.uid) + ") or root");
    }
    if (record.is_regular()) files_.push_back({path, inode, record.blob});
    if (!record.is_dir()) return success();
    TRY_ASSIGN(const auto entries, tree_.list(inode));
    for (const meta::DirectoryEntry& entry : entries) {
      TRY(add(entry.inode, (path == "/" || path.empty() ? path : path + "/") + entry.name, depth + 1));
    }
    return success();
  }

  const meta::Tree& tree_;
  const Credentials& who_;
  const unsigned wanted_;
  std::vector<FoundFile> files_;
  uint64_t* left_out_ = nullptr;
};

}  // namespace

Result<std::vector<FoundFile>> files_below(const meta::Tree& tree, const Credentials& who, meta::InodeNumber top,
                                           const std::string& path, unsigned wanted) {
  Walk walk(tree, who, wanted);
  TRY(walk.add(top, path));
  return walk.take();
}

Result<std::vector<FoundFile>> seen_files_below(const meta::Tree& tree, const Credentials& who, meta::InodeNumber top,
                                                const std::string& path, unsigned wanted, uint64_t& left_out) {
  Walk walk(tree, who, wanted);
  walk.leave_out_into(left_out);
  TRY(walk.add(top, path));
  return walk.take();
}

Result<meta::InodeNumber> resolve_as(const meta::Tree& tree, const Credentials& who, const std::string& path,
                                     unsigned wanted) {
  meta::InodeNumber inode = meta::kRootInode;
  std::string walked = "/";
  std::istringstream names(path);
  for (std::string name; std::getline(names, name, '/');) {
    if (name.empty() || name == ".") continue;
    if (name == "..") return Error(EINVAL, path + ": \"..\" is not understood here; name it from the mount's root");
    TRY(check(tree, who, inode, kSearch, walked));
    auto child = tree.lookup(inode, name);
    walked += (walked.size() > 1 ? "/" : "") + name;
    if (!child) return with_name(walked, Error(child.error().errno_value()));
    inode = child.value().stat.st_ino;
  }
  TRY(check(tree, who, inode, wanted, walked));
  return inode;
}

Result<> reach_as(const meta::Tree& tree, const Credentials& who, meta::InodeNumber inode, unsigned wanted) {
  TRY_ASSIGN(const bool may, meta::may_reach(tree, who, inode, wanted));
  return may ? success() : Result<>(Error(EACCES, tree.path_of(inode) + ": " + Error(EACCES).message()));
}

}  // namespace ckptfs::fs
