#include "fs/remote/local_step.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "fs/remote/save_order.h"
#include "fs/steps/step_judgement.h"
#include "fs/views/files_of_step.h"
#include "io/aligned_buffer.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/manifest.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::fs {
namespace {

using meta::remote::Entry;

constexpr size_t kDeepest = meta::kDeepestStep;

bool is_same_entry(const Entry& one, const Entry& other) {
  return one.path == other.path && one.kind == other.kind && one.mode == other.mode && one.uid == other.uid &&
         one.gid == other.gid && one.size == other.size && one.target == other.target;
}

Error cannot_push(const std::string& path, const std::string& why) {
  return Error(EINVAL, path + ": " + why + ", which cannot be pushed; move it out of the step");
}

// What the manifests of libckptfs call the attempt; empty: there is none.
Result<std::string> attempt_of(const meta::formats::StepFiles& files) {
  constexpr uint64_t kMostManifest = uint64_t{64} << 20;
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    if (!meta::formats::is_manifest_name(files.list()[index].path)) continue;
    TRY_ASSIGN(const std::string text, files.read(index, kMostManifest));
    const auto manifest = meta::formats::parse_manifest(text);
    if (manifest) return manifest.value().attempt;
  }
  return std::string();
}

}  // namespace

Result<std::unique_ptr<LocalStep>> LocalStep::make(const Environment& environment, meta::InodeNumber step,
                                                   const meta::Pause& pause) {
  std::unique_ptr<LocalStep> made(new LocalStep(environment, step));
  made->tag_ = meta::name_of(environment.store.tree(), step);
  TRY(meta::remote::check_tag(made->tag_));
  TRY_ASSIGN(Tree tree, made->collect());
  made->entries_ = std::move(tree.entries);
  made->files_ = std::move(tree.files);
  TRY(made->take_digests(pause));
  made->roots_.resize(made->entries_.size());
  for (size_t at = 0; at < made->entries_.size(); ++at) {
    if (made->entries_[at].kind == Entry::Kind::file) TRY_SET(made->roots_[at], made->root_of(at));
  }
  TRY_SET(made->own_attempt_, made->judge());
  TRY(made->look_at_save());
  TRY_ASSIGN(const bool current, made->is_current());
  if (!current) return Error(EBUSY, environment.store.tree().path_of(step) + ": it is being changed");
  return made;
}

Result<LocalStep::Tree> LocalStep::collect() const {
  Tree found;
  TRY(add("", step_, found));
  std::vector<size_t> order(found.entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t at) -> const std::string& { return found.entries[at].path; });
  Tree sorted;
  for (const size_t at : order) {
    sorted.entries.push_back(std::move(found.entries[at]));
    sorted.files.push_back(found.files[at]);
  }
  return sorted;
}

Result<> LocalStep::add(const std::string& path, meta::InodeNumber inode, Tree& tree) const {
  const meta::Tree& names = env_.store.tree();
  TRY_ASSIGN(const meta::Attributes attributes, names.attributes(inode));
  const meta::InodeRecord& record = attributes.record;
  Entry entry;
  entry.path = path;
  entry.mode = attributes.stat.st_mode & 07777;
  entry.uid = record.uid;
  entry.gid = record.gid;
  entry.mtime = attributes.stat.st_mtim;
  if (record.is_regular()) {
    entry.kind = Entry::Kind::file;
    entry.size = static_cast<uint64_t>(attributes.stat.st_size);
  } else if (record.is_dir()) {
    entry.kind = Entry::Kind::folder;
  } else if (S_ISLNK(record.mode)) {
    entry.kind = Entry::Kind::link;
    entry.target = record.target;
  } else {
    return cannot_push(names.path_of(inode), "it is no file, folder or symbolic link");
  }
  if (const auto fit = meta::remote::check_alone(entry); !fit) {
    return Error(EINVAL, tag_ + "/" + fit.error().message() + ", which cannot be pushed; rename or remove it");
  }
  tree.entries.push_back(std::move(entry));
  tree.files.push_back({inode, record.blob});
  if (!record.is_dir()) return success();
  if (static_cast<size_t>(std::ranges::count(path, '/')) > kDeepest) {
    return cannot_push(names.path_of(inode), "folders lie too deep in each other");
  }
  TRY_ASSIGN(const auto children, names.list(inode));
  for (const meta::DirectoryEntry& child : children) {
    TRY(add(path.empty() ? child.name : path + "/" + child.name, child.inode, tree));
  }
  return success();
}

Result<> LocalStep::take_digests(const meta::Pause& pause) const {
  for (size_t at = 0; at < entries_.size(); ++at) {
    if (entries_[at].kind != Entry::Kind::file) continue;
    const meta::InodeNumber file = files_[at].inode;
    const std::string path = env_.store.tree().path_of(file);
    TRY_ASSIGN(const meta::InodeRecord record, env_.store.tree().inode(file));
    TRY(env_.store.tree().refuse_suspect(file, record));
    TRY_ASSIGN(const meta::Verdict verdict, meta::known_verdict(env_.store, file));
    if (verdict == meta::Verdict::damaged) return Error(EBADMSG, path + ": it no longer holds what was written");
    if (verdict == meta::Verdict::ok) continue;
    TRY_ASSIGN(const meta::Taking taking, meta::take_digests(env_.store, file, pause));
    if (taking == meta::Taking::stopped) return Error(ECANCELED);
    if (taking == meta::Taking::postponed) return Error(EBUSY, path + ": somebody writes to it");
    if (taking == meta::Taking::too_long) return cannot_push(path, "it is longer than the disk");
  }
  return success();
}

// Returns what the step's own files call the attempt.
Result<std::string> LocalStep::judge() {
  const views::AskWriters ask_writers = [this](meta::InodeNumber inode, int) {
    return views::Writers{env_.files.open_for_writing(inode), false, {}};
  };
  const std::lock_guard turn(env_.readings);
  views::FilesOfStep files(env_.store, ask_writers, env_.stop);
  TRY(files.collect(step_));
  if (!files.problems().empty()) return Error(EBUSY, files.problems().front().file + ": it is being written");
  facts_ = meta::formats::completeness_facts(files, meta::formats::read_checkpoint(files));
  if (files.short_of()) return *files.short_of();
  TRY_ASSIGN(const auto ledger, meta::ledger_of(env_.store, step_));
  TRY_ASSIGN(const Declared declared, declared_of(env_.store.tree(), step_));
  TRY_ASSIGN(const auto heeded, heed_declared(env_.store, step_, ledger, declared, facts_.own));
  if (meta::formats::is_whole(heeded.completeness)) facts_.own = heeded;
  return attempt_of(files);
}

Result<bool> LocalStep::look_at_save() {
  TRY_ASSIGN(const StepStatus status, env_.step_facts.inspect_step(step_));
  const auto& order = status.ledger.order;
  if (is_saved_again(status)) return Error(EBUSY, env_.store.tree().path_of(step_) + ": it was saved again just now");
  order_ = {order->term, order->time};
  std::string attempt = own_attempt_;
  if (attempt.empty()) TRY_SET(attempt, agreed_save(env_.store, step_, status.ledger));
  const bool is_told = save_.attempt != attempt;
  save_ = save_facts_of(status, env_.step_facts.clock(), std::move(attempt));
  return is_told;
}

Result<std::vector<io::Digest>> LocalStep::digests(size_t index) const {
  TRY_ASSIGN(const meta::BlobRecord blob, env_.store.index().blob(files_[index].blob));
  if (blob.digest.length != entries_[index].size || blob.digest.root != roots_[index]) {
    return Error(ESTALE, entries_[index].path + ": it has changed");
  }
  return meta::digests_of(env_.store.index(), files_[index].blob, blob.digest);
}

Result<> LocalStep::read(size_t index, uint64_t offset, std::span<std::byte> buffer) const {
  TRY_ASSIGN(const io::Fd blob, env_.store.blobs().open(files_[index].blob, O_RDONLY | O_DIRECT));
  io::AlignedBuffer aligned;
  const size_t room = (buffer.size() + io::AlignedBuffer::kAlignment - 1) & ~(io::AlignedBuffer::kAlignment - 1);
  const auto space = aligned.get(room);
  if (space.empty()) return Error(ENOMEM);
  TRY_ASSIGN(const size_t got, io::read_full(blob.get(), space.first(room), static_cast<off_t>(offset)));
  if (got < buffer.size()) return Error(ESTALE, entries_[index].path + ": it became shorter");
  std::memcpy(buffer.data(), space.data(), buffer.size());
  return success();
}

Result<bool> LocalStep::is_current() const {
  if (meta::name_of(env_.store.tree(), step_) != tag_) return false;
  TRY_ASSIGN(const auto tree, none_if_gone(collect()));
  if (!tree || tree->files != files_ || !std::ranges::equal(tree->entries, entries_, is_same_entry)) return false;
  for (size_t at = 0; at < entries_.size(); ++at) {
    if (entries_[at].kind != Entry::Kind::file) continue;
    TRY_ASSIGN(const auto verdict, none_if_gone(meta::known_verdict(env_.store, files_[at].inode)));
    if (verdict != meta::Verdict::ok) return false;
    TRY_ASSIGN(const io::Digest root, root_of(at));
    if (root != roots_[at]) return false;  // it was written again, and digested again
  }
  return true;
}

Result<io::Digest> LocalStep::root_of(size_t index) const {
  TRY_ASSIGN(const auto blob, none_if_gone(env_.store.index().blob(files_[index].blob)));
  return blob ? blob->digest.root : io::Digest{};
}

}  // namespace ckptfs::fs
