// The operations of a remote mount. What is at hand is answered at once; for what has to be fetched the work goes on on
// a lane of the user's, or, for the bytes of a file, in the ChunkReader.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "fs/open/permission.h"
#include "fs/remote_mount/parts.h"
#include "fs/remote_mount/places.h"
#include "io/aligned_buffer.h"
#include "io/log.h"
#include "io/printable.h"
#include "meta/names.h"
#include "meta/tree/access.h"

namespace ckptfs::fs::remote_mount {

namespace {

using Kind = Place::Kind;
using meta::remote::Entry;
using meta::remote::FileSpan;
using views::View;

constexpr double kForEver = 86'400;  // seconds: what is in a step never changes
constexpr double kForList = 1;       // steps come and go
constexpr double kForSlots = 3600;
constexpr blksize_t kBlock = 1 << 20;
constexpr int kMostGroups = 1024;
constexpr const char* kSocketXattr = "user.ckptfs.socket";

thread_local io::AlignedBuffer view_buffer;

// A request and its answer. A value: whoever answers later keeps a copy.
class RemoteRequest {
 public:
  RemoteRequest(fuse_req_t request, fuse_ino_t inode)
      : parts_(static_cast<Parts*>(fuse_req_userdata(request))),
        place_(place_of(inode)),
        inode_(inode),
        uid_(fuse_req_ctx(request)->uid),
        entry_(std::make_shared<Unanswered::Entry>()) {
    entry_->request = request;
    entry_->thread = fuse_req_ctx(request)->pid;
    ++parts_->requests;
  }

  Parts& parts() const { return *parts_; }
  const Place& place() const { return place_; }
  InodeNumber inode() const { return inode_; }
  uint32_t uid() const { return uid_; }
  // With the groups, if they are asked for below (may_enter). To be called first: an interrupt may answer the request.
  Credentials caller() const {
    Credentials who{uid_, fuse_req_ctx(entry_->request)->gid};
    if (place_.index != 0 || parts_->ownership.only || uid_ == 0) return who;
    who.groups.resize(kMostGroups);
    const int count = fuse_req_getgroups(entry_->request, kMostGroups, who.groups.data());
    who.groups.resize(static_cast<size_t>(std::clamp(count, 0, kMostGroups)));
    return who;
  }

  void become_interruptible() const {
    if (entry_->number == 0) parts_->unanswered.add(entry_);
  }
  // Before that.
  void reads() const { entry_->reads = true; }
  // Returns whether the kernel took the answer.
  template <class Send>
  bool answer(const Send& send) const {
    if (entry_->answered.exchange(true)) return false;
    if (entry_->number != 0) parts_->unanswered.remove(entry_->number);
    return send(entry_->request) == 0;
  }
  void error(int errno_value) const {
    answer([&](fuse_req_t request) { return fuse_reply_err(request, errno_value); });
  }
  // What the remote says is EIO to the kernel, and never "there is none". The words are in the log and in the status.
  void failed(const Error& error) const {
    ++parts_->errors;
    if (!parts_->stop) log::warn("{}", error.message());
    this->error(EIO);
  }
  // Runs `work` with the time that the request has, on a lane of the user's.
  template <class Work>
  void later(Work work) const {
    become_interruptible();
    const io::RequestLimits limits = parts_->limits();
    const auto started = parts_->lanes.start(uid_, [request = *this, work, limits] {
      if (request.entry_->answered) return;  // it was interrupted meanwhile
      if (std::chrono::steady_clock::now() > limits.deadline) {
        return request.failed(Error(ETIMEDOUT, "other requests of this user took all the time"));
      }
      work(limits);
    });
    if (!started) failed(started.error());
  }

 private:
  Parts* parts_;
  Place place_;
  InodeNumber inode_;
  uint32_t uid_;
  std::shared_ptr<Unanswered::Entry> entry_;
};

// --- what is asked for: at once if it is known

template <class Then>
void with_step(const RemoteRequest& request, uint32_t number, Then then) {
  if (const auto known = request.parts().catalog->known_step(number)) return then(known);
  request.later([request, number, then](const io::RequestLimits& limits) {
    const auto opened = request.parts().catalog->open(number, limits);
    opened ? then(opened.value()) : request.failed(opened.error());
  });
}

template <class Then>
void with_view(const RemoteRequest& request, uint32_t number, Then then) {
  if (const auto known = request.parts().catalog->known_view(number)) return then(known);
  request.later([request, number, then](const io::RequestLimits& limits) {
    const auto made = request.parts().catalog->view(number, limits);
    made ? then(made.value()) : request.failed(made.error());
  });
}

// `then` takes the list of steps. `name`: a known list that has this step is good enough; empty: a recent one.
template <class Then>
void with_list(const RemoteRequest& request, const std::string& name, Then then) {
  Catalog& catalog = *request.parts().catalog;
  const auto recent = catalog.known_list(Catalog::kRecent);
  if (recent) return then(*recent);
  const auto known = name.empty() ? nullptr : catalog.known_list(std::chrono::minutes(1));
  if (known && known->find(name) != nullptr) return then(*known);
  request.later([request, then](const io::RequestLimits& limits) {
    const auto listed = request.parts().catalog->list(limits);
    listed ? then(*listed.value()) : request.failed(listed.error());
  });
}

// --- attributes

struct stat new_stat(InodeNumber inode, mode_t mode, const views::Access& access, uint64_t size, const timespec& time) {
  struct stat st {};
  st.st_ino = inode;
  st.st_mode = mode | access.mode;
  st.st_nlink = S_ISDIR(mode) ? 2 : 1;
  st.st_uid = access.uid;
  st.st_gid = access.gid;
  st.st_size = static_cast<off_t>(size);
  st.st_blksize = kBlock;
  st.st_blocks = static_cast<blkcnt_t>((size + 511) / 512);
  st.st_mtim = st.st_ctim = st.st_atim = time;
  return st;
}

struct stat stat_of_top(const Parts& parts, InodeNumber inode) {
  return new_stat(inode, S_IFDIR, {parts.uid, parts.gid, 0555}, 0, parts.mounted);
}

timespec time_of(std::chrono::system_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  return {seconds.count(), static_cast<long>(std::chrono::nanoseconds(since - seconds).count())};
}

// A step's own folder. What the list tells is enough, so that `ls -l` asks for no step.
struct stat stat_of_step(const Parts& parts, const Place& place, const meta::remote::CommittedStep& step) {
  return new_stat(number_of(place), S_IFDIR, {parts.uid, parts.gid, 0555}, 0, time_of(step.committed));
}

mode_t type_of(Entry::Kind kind) {
  return kind == Entry::Kind::folder ? S_IFDIR : kind == Entry::Kind::link ? S_IFLNK : S_IFREG;
}

struct stat stat_of_entry(const Parts& parts, const OpenedStep& step, const StepFiles& files, const Place& place) {
  if (place.index == 0) return stat_of_step(parts, place, step.step->step());
  const Entry& entry = step.step->entry(*files.at(place.index));
  views::Access access = parts.ownership.access_of(entry);
  if (entry.kind == Entry::Kind::link) access.mode = 0777;
  const uint64_t size = entry.kind == Entry::Kind::link ? entry.target.size() : entry.size;
  return new_stat(number_of(place), type_of(entry.kind), access, size, entry.mtime);
}

struct stat stat_of_node(const Parts& parts, const RemoteView& view, const Place& place, const View::Node& node) {
  if (place.index == 0) return stat_of_step(parts, place, view.of->step->step());
  return new_stat(number_of(place), View::type_of(node), node.access, node.size,
                  time_of(view.of->step->step().committed));
}

void reply_entry(const RemoteRequest& request, const struct stat& st, double seconds) {
  fuse_entry_param entry{};
  entry.ino = st.st_ino;
  entry.attr = st;
  entry.attr_timeout = entry.entry_timeout = seconds;
  request.answer([&](fuse_req_t req) { return fuse_reply_entry(req, &entry); });
}

void reply_attributes(const RemoteRequest& request, const struct stat& st, double seconds) {
  request.answer([&](fuse_req_t req) { return fuse_reply_attr(req, &st, seconds); });
}

// The list shows every step's folder as open to all, so its own mode is asked here.
bool may_enter(const RemoteRequest& request, const Credentials& who, const OpenedStep& step, const StepFiles& files,
               unsigned wanted) {
  if (request.place().index != 0 || request.parts().ownership.only) return true;
  const Entry& folder = step.step->entry(*files.at(0));
  meta::InodeRecord record;
  record.uid = folder.uid;
  record.gid = folder.gid;
  record.mode = folder.mode;
  return meta::may_access(who, record, wanted);
}

// May the kernel answer by itself what is in the folder? Not in a step's own, if that is not open to all: the kernel
// takes it to be so, and asks for no lookup of what it knows.
bool is_open_to_all(const RemoteRequest& request, const OpenedStep& step, const StepFiles& files) {
  if (request.place().index != 0 || request.parts().ownership.only) return true;
  return (step.step->entry(*files.at(0)).mode & 0111U) == 0111U;
}

const StepFiles& files_of(const OpenedStep& step, const Place& place) {
  return step.files(place.kind == Kind::of_slot, place.slot);
}

// --- names

// "@3"
std::optional<uint32_t> slot_named(const Parts& parts, std::string_view name) {
  uint32_t slot = 0;
  if (!name.starts_with('@')) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + 1, end, slot);
  const bool whole = error == std::errc() && rest == end && "@" + std::to_string(slot) == name;
  return whole && slot < std::min(parts.facts.slots, kMostSlots) ? std::optional(slot) : std::nullopt;
}

// Where the steps of a folder that has steps lie.
Place below(const Place& top, uint32_t step) {
  if (top.kind == Kind::slot_top) return {Kind::of_slot, top.slot, step, 0};
  return {top.index == kViews ? Kind::of_view : Kind::whole, 0, step, 0};
}

void look_up_step(const RemoteRequest& request, const std::string& name) {
  if (request.inode() == kRoot) {
    const Parts& parts = request.parts();
    if (name == meta::kViewsName) return reply_entry(request, stat_of_top(parts, kViews), kForSlots);
    if (const auto slot = slot_named(parts, name)) {
      return reply_entry(request, stat_of_top(parts, number_of({Kind::slot_top, *slot, 0, 0})), kForSlots);
    }
  }
  with_list(request, name, [request, name](const StepList& list) {
    const ListedStep* const found = list.find(name);
    if (found == nullptr) return request.error(ENOENT);
    reply_entry(request, stat_of_step(request.parts(), below(request.place(), found->number), found->step), kForList);
  });
}

void look_up_file(const RemoteRequest& request, const std::string& name) {
  const Credentials who = request.caller();
  with_step(request, request.place().step, [request, who, name](const std::shared_ptr<const OpenedStep>& step) {
    Place place = request.place();
    const StepFiles& files = files_of(*step, place);
    if (files.at(place.index) == nullptr) return request.error(ESTALE);
    if (!may_enter(request, who, *step, files, meta::kSearch)) return request.error(EACCES);
    const auto child = files.child(place.index, name);
    if (!child) return request.error(ENOENT);
    const double seconds = is_open_to_all(request, *step, files) ? kForEver : 0;
    place.index = *child;
    reply_entry(request, stat_of_entry(request.parts(), *step, files, place), seconds);
  });
}

void look_up_node(const RemoteRequest& request, const std::string& name) {
  const Credentials who = request.caller();
  with_view(request, request.place().step, [request, who, name](const std::shared_ptr<const RemoteView>& view) {
    Place place = request.place();
    const View::Node* const folder = view->view.node(place.index);
    if (folder == nullptr) return request.error(ESTALE);
    if (!may_enter(request, who, *view->of, view->of->whole, meta::kSearch)) return request.error(EACCES);
    const double seconds = is_open_to_all(request, *view->of, view->of->whole) ? kForEver : 0;
    const auto child = folder->children.find(name);
    if (child == folder->children.end()) return request.error(ENOENT);
    place.index = child->second;
    reply_entry(request, stat_of_node(request.parts(), *view, place, *view->view.node(child->second)), seconds);
  });
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  const RemoteRequest request(req, parent);
  if (request.place().is_top()) return look_up_step(request, name);
  if (request.place().kind == Kind::of_view) return look_up_node(request, name);
  look_up_file(request, name);
}

// --- attributes and links

void op_getattr(fuse_req_t req, fuse_ino_t inode, fuse_file_info*) {
  const RemoteRequest request(req, inode);
  const Place& place = request.place();
  if (place.is_top()) return reply_attributes(request, stat_of_top(request.parts(), inode), kForSlots);
  if (place.index == 0) {
    const auto listed = request.parts().catalog->listed(place.step);
    if (!listed) return request.error(ESTALE);
    return reply_attributes(request, stat_of_step(request.parts(), place, listed.value()), kForEver);
  }
  if (place.kind == Kind::of_view) {
    return with_view(request, place.step, [request](const std::shared_ptr<const RemoteView>& view) {
      const View::Node* const node = view->view.node(request.place().index);
      if (node == nullptr) return request.error(ESTALE);
      reply_attributes(request, stat_of_node(request.parts(), *view, request.place(), *node), kForEver);
    });
  }
  with_step(request, place.step, [request](const std::shared_ptr<const OpenedStep>& step) {
    const StepFiles& files = files_of(*step, request.place());
    if (files.at(request.place().index) == nullptr) return request.error(ESTALE);
    reply_attributes(request, stat_of_entry(request.parts(), *step, files, request.place()), kForEver);
  });
}

void reply_link(const RemoteRequest& request, const std::string& target) {
  request.answer([&](fuse_req_t req) { return fuse_reply_readlink(req, target.c_str()); });
}

void op_readlink(fuse_req_t req, fuse_ino_t inode) {
  const RemoteRequest request(req, inode);
  if (request.place().is_top()) return request.error(EINVAL);
  if (request.place().kind == Kind::of_view) {
    return with_view(request, request.place().step, [request](const std::shared_ptr<const RemoteView>& view) {
      const View::Node* const node = view->view.node(request.place().index);
      if (node == nullptr) return request.error(ESTALE);
      if (node->kind != View::Kind::link) return request.error(EINVAL);
      reply_link(request, *node->text);
    });
  }
  with_step(request, request.place().step, [request](const std::shared_ptr<const OpenedStep>& step) {
    const meta::remote::UnionEntry* const found = files_of(*step, request.place()).at(request.place().index);
    if (found == nullptr) return request.error(ESTALE);
    const Entry& entry = step->step->entry(*found);
    if (entry.kind != Entry::Kind::link) return request.error(EINVAL);
    reply_link(request, entry.target);
  });
}

// --- folders

void reply_folder(const RemoteRequest& request, fuse_file_info info, std::vector<FolderHandle::Name> names,
                  bool may_be_kept) {
  auto handle = std::make_unique<FolderHandle>();
  handle->names = std::move(names);
  info.cache_readdir = info.keep_cache = may_be_kept ? 1 : 0;
  info.fh = request.parts().folders.add(std::move(handle));
  if (!request.answer([&](fuse_req_t req) { return fuse_reply_open(req, &info); })) {
    request.parts().folders.take(info.fh);
  }
}

void open_top(const RemoteRequest& request, const fuse_file_info& info) {
  with_list(request, "", [request, info](const StepList& list) {
    std::vector<FolderHandle::Name> names;
    if (request.inode() == kRoot) {
      const Parts& parts = request.parts();
      names.push_back({meta::kViewsName, kViews, S_IFDIR});
      for (uint32_t slot = 0; slot < std::min(parts.facts.slots, kMostSlots); ++slot) {
        names.push_back({"@" + std::to_string(slot), number_of({Kind::slot_top, slot, 0, 0}), S_IFDIR});
      }
    }
    for (const ListedStep& one : list.steps) {
      const bool taken = one.step.name() == meta::kViewsName || slot_named(request.parts(), one.step.name());
      if (request.inode() == kRoot && taken) continue;  // it is in /@0
      names.push_back({one.step.name(), number_of(below(request.place(), one.number)), S_IFDIR});
    }
    reply_folder(request, info, std::move(names), false);
  });
}

void open_folder_of_step(const RemoteRequest& request, const fuse_file_info& info) {
  const Credentials who = request.caller();
  with_step(request, request.place().step, [request, who, info](const std::shared_ptr<const OpenedStep>& step) {
    Place place = request.place();
    const StepFiles& files = files_of(*step, place);
    if (files.at(place.index) == nullptr) return request.error(ESTALE);
    if (!may_enter(request, who, *step, files, meta::kRead)) return request.error(EACCES);
    std::vector<FolderHandle::Name> names;
    for (const uint32_t child : files.children(place.index)) {
      place.index = child;
      const auto& entry = *files.at(child);
      names.push_back({std::string(name_in(entry.path)), number_of(place), type_of(step->step->entry(entry).kind)});
    }
    reply_folder(request, info, std::move(names), true);
  });
}

void open_folder_of_view(const RemoteRequest& request, const fuse_file_info& info) {
  const Credentials who = request.caller();
  with_view(request, request.place().step, [request, who, info](const std::shared_ptr<const RemoteView>& view) {
    Place place = request.place();
    const View::Node* const folder = view->view.node(place.index);
    if (folder == nullptr) return request.error(ESTALE);
    if (!may_enter(request, who, *view->of, view->of->whole, meta::kRead)) return request.error(EACCES);
    std::vector<FolderHandle::Name> names;
    for (const auto& [name, number] : folder->children) {
      place.index = number;
      names.push_back({name, number_of(place), View::type_of(*view->view.node(number))});
    }
    reply_folder(request, info, std::move(names), true);
  });
}

void op_opendir(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const RemoteRequest request(req, inode);
  if (request.place().is_top()) return open_top(request, *info);
  if (request.place().kind == Kind::of_view) return open_folder_of_view(request, *info);
  open_folder_of_step(request, *info);
}

void op_readdir(fuse_req_t req, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* info) {
  constexpr size_t kDots = 2;
  const RemoteRequest request(req, inode);
  const std::vector<FolderHandle::Name>& names = Handles<FolderHandle>::get(info->fh).names;
  std::vector<char> buffer(size);
  size_t used = 0;
  for (size_t at = static_cast<size_t>(offset); at < names.size() + kDots; ++at) {
    struct stat st {};
    st.st_ino = at < kDots ? inode : names[at - kDots].inode;
    st.st_mode = at < kDots ? mode_t{S_IFDIR} : names[at - kDots].type;
    const char* const name = at == 0 ? "." : at == 1 ? ".." : names[at - kDots].name.c_str();
    const size_t needed =
        fuse_add_direntry(req, buffer.data() + used, size - used, name, &st, static_cast<off_t>(at) + 1);
    if (needed > size - used) break;
    used += needed;
  }
  request.answer([&](fuse_req_t answered) { return fuse_reply_buf(answered, buffer.data(), used); });
}

void op_releasedir(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const RemoteRequest request(req, inode);
  request.parts().folders.take(info->fh);
  request.error(0);
}

// --- files

void reply_open(const RemoteRequest& request, fuse_file_info info, std::shared_ptr<OpenedFile> opened) {
  info.keep_cache = 1;  // it never changes
  info.noflush = 1;
  info.fh = request.parts().files.add(std::make_unique<FileHandle>(FileHandle{std::move(opened)}));
  if (!request.answer([&](fuse_req_t req) { return fuse_reply_open(req, &info); })) {
    request.parts().files.take(info.fh);
  }
}

void open_node(const RemoteRequest& request, const fuse_file_info& info) {
  with_view(request, request.place().step, [request, info](const std::shared_ptr<const RemoteView>& view) {
    const auto open = [request, info, view] {
      const View::Node* const node = view->view.node(request.place().index);
      if (node == nullptr) return request.error(ESTALE);
      if (!S_ISREG(View::type_of(*node))) return request.error(EISDIR);
      auto opened = std::make_shared<OpenedFile>();
      opened->view = view;
      opened->content = view->view.content(*node);
      reply_open(request, info, std::move(opened));
    };
    const View::Node* const node = view->view.node(request.place().index);
    if (node == nullptr || view->view.makes_quickly(*node)) return open();
    request.later([open](const io::RequestLimits&) { open(); });
  });
}

void op_open(fuse_req_t req, fuse_ino_t inode, fuse_file_info* given) {
  const RemoteRequest request(req, inode);
  if ((given->flags & O_ACCMODE) != O_RDONLY || (given->flags & O_TRUNC) != 0) return request.error(EROFS);
  if (request.place().is_top()) return request.error(EISDIR);
  if (request.place().kind == Kind::of_view) return open_node(request, *given);
  with_step(request, request.place().step, [request, info = *given](const std::shared_ptr<const OpenedStep>& step) {
    const meta::remote::UnionEntry* const found = files_of(*step, request.place()).at(request.place().index);
    if (found == nullptr) return request.error(ESTALE);
    if (step->step->entry(*found).kind != Entry::Kind::file) return request.error(EISDIR);
    auto opened = std::make_shared<OpenedFile>();
    opened->file = {step->step, *found};
    reply_open(request, info, std::move(opened));
  });
}

void reply_pieces(const RemoteRequest& request, const meta::remote::ChunkReader::Pieces& pieces) {
  std::vector<iovec> parts;
  for (const auto& piece : pieces) {
    parts.push_back({const_cast<std::byte*>(piece.bytes.data()), piece.bytes.size()});
  }
  request.answer([&](fuse_req_t req) { return fuse_reply_iov(req, parts.data(), static_cast<int>(parts.size())); });
}

void read_file(const RemoteRequest& request, OpenedFile& opened, const FileSpan& wanted) {
  meta::remote::ChunkReader& reader = *request.parts().reader;
  const auto ahead = opened.ahead.note(wanted, opened.size());
  request.become_interruptible();
  reader.read(opened.file, wanted, [request](const Result<meta::remote::ChunkReader::Pieces>& pieces) {
    pieces ? reply_pieces(request, pieces.value()) : request.failed(pieces.error());
  });
  if (ahead) opened.ahead.fetched_to(reader.fetch_ahead(opened.file, *ahead));
}

// The pieces of the step's files that the view's next bytes are made from, and no more.
void fetch_pieces_ahead(Parts& parts, OpenedFile& opened, const FileSpan& ahead) {
  for (const views::Content::Run& run : opened.content.sources(ahead.offset, ahead.size)) {
    const auto& file = opened.view->files->file(run.file);
    if (parts.reader->fetch_ahead(file, {run.offset, run.size}) < run.offset + run.size) {
      return opened.ahead.fetched_to(run.begin);
    }
  }
}

void read_view(const RemoteRequest& request, OpenedFile& opened, const FileSpan& wanted,
               const io::RequestLimits& limits) {
  const auto buffer = view_buffer.get(wanted.size);
  if (buffer.size() < wanted.size) return request.error(ENOMEM);
  Parts& parts = request.parts();
  if (const auto ahead = opened.ahead.note(wanted, opened.size())) fetch_pieces_ahead(parts, opened, *ahead);
  const auto read_piece = [&](uint32_t index, std::span<std::byte> bytes, uint64_t offset) -> Result<size_t> {
    if (std::chrono::steady_clock::now() > limits.deadline)
      return Error(ETIMEDOUT, "the pieces of a view took too long");
    TRY(parts.reader->read_now(opened.view->files->file(index), offset, bytes));
    return bytes.size();
  };
  const auto got = opened.content.read(buffer.first(wanted.size), wanted.offset, read_piece);
  if (!got) return request.failed(got.error());
  request.answer(
      [&](fuse_req_t req) { return fuse_reply_buf(req, reinterpret_cast<const char*>(buffer.data()), got.value()); });
}

void op_read(fuse_req_t req, fuse_ino_t inode, size_t size, off_t given, fuse_file_info* info) {
  const RemoteRequest request(req, inode);
  request.reads();
  const std::shared_ptr<OpenedFile> opened = Handles<FileHandle>::get(info->fh).opened;
  const uint64_t end = opened->size(), offset = std::min(static_cast<uint64_t>(given), end);
  const FileSpan wanted{offset, std::min<uint64_t>(size, end - offset)};
  if (!opened->view) return read_file(request, *opened, wanted);
  request.later(
      [request, opened, wanted](const io::RequestLimits& limits) { read_view(request, *opened, wanted, limits); });
}

void op_release(fuse_req_t req, fuse_ino_t inode, fuse_file_info* info) {
  const RemoteRequest request(req, inode);
  request.parts().files.take(info->fh);
  request.error(0);
}

void op_flush(fuse_req_t req, fuse_ino_t inode, fuse_file_info*) { RemoteRequest(req, inode).error(0); }

void op_fsync(fuse_req_t req, fuse_ino_t inode, int, fuse_file_info*) { RemoteRequest(req, inode).error(0); }

void op_lseek(fuse_req_t req, fuse_ino_t inode, off_t offset, int whence, fuse_file_info* info) {
  const RemoteRequest request(req, inode);
  const auto size = static_cast<off_t>(Handles<FileHandle>::get(info->fh).opened->size());
  if (whence != SEEK_DATA && whence != SEEK_HOLE) return request.error(EINVAL);
  if (offset < 0 || offset >= size) return request.error(ENXIO);
  request.answer([&](fuse_req_t answered) { return fuse_reply_lseek(answered, whence == SEEK_DATA ? offset : size); });
}

// --- the rest

void op_statfs(fuse_req_t req, fuse_ino_t inode) {
  const RemoteRequest request(req, inode);
  struct statvfs space {};
  space.f_bsize = space.f_frsize = kBlock;
  space.f_namemax = 255;
  space.f_flag = ST_RDONLY;
  request.answer([&](fuse_req_t answered) { return fuse_reply_statfs(answered, &space); });
}

void op_getxattr(fuse_req_t req, fuse_ino_t inode, const char* name, size_t size) {
  const RemoteRequest request(req, inode);
  const std::string& socket = request.parts().socket;
  if (inode != kRoot || std::string_view(name) != kSocketXattr) return request.error(ENODATA);
  if (size != 0 && size < socket.size()) return request.error(ERANGE);
  request.answer([&](fuse_req_t answered) {
    return size == 0 ? fuse_reply_xattr(answered, socket.size())
                     : fuse_reply_buf(answered, socket.data(), socket.size());
  });
}

void op_listxattr(fuse_req_t req, fuse_ino_t inode, size_t size) {
  const RemoteRequest request(req, inode);
  request.answer([&](fuse_req_t answered) {
    return size == 0 ? fuse_reply_xattr(answered, 0) : fuse_reply_buf(answered, nullptr, 0);
  });
}

// What the kernel remembers needs nothing of the daemon: a number tells all.
void op_forget(fuse_req_t req, fuse_ino_t, uint64_t) { fuse_reply_none(req); }

void op_init(void* user_data, fuse_conn_info* connection) {
  constexpr unsigned kLargestRead = 1U << 20;
  for (const uint64_t wanted : {uint64_t{FUSE_CAP_ASYNC_READ}, uint64_t{FUSE_CAP_PARALLEL_DIROPS},
                                uint64_t{FUSE_CAP_ASYNC_DIO}, uint64_t{FUSE_CAP_NO_EXPORT_SUPPORT}}) {
    if (!fuse_set_feature_flag(connection, wanted)) log::warn("the kernel lacks FUSE capability {:#x}", wanted);
  }
  for (const uint64_t unwanted : {uint64_t{FUSE_CAP_AUTO_INVAL_DATA}, uint64_t{FUSE_CAP_READDIRPLUS},
                                  uint64_t{FUSE_CAP_SPLICE_READ}, uint64_t{FUSE_CAP_EXPORT_SUPPORT}}) {
    fuse_unset_feature_flag(connection, unwanted);
  }
  connection->max_write = kLargestRead;  // the largest READ has as many pages
  connection->max_background = 128;
  connection->congestion_threshold = 96;
  fuse_session_exit(static_cast<Parts*>(user_data)->session->get());  // Session::mount answers this one request only
}

}  // namespace

namespace {

// libfuse calls interrupted() from within fuse_req_interrupt_func() if the request was interrupted before, and uses the
// request afterwards: it must not be answered there.
thread_local bool adding = false;
thread_local bool interrupted_before = false;

constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

// Has the thread a signal that is to end it? If /proc does not tell: yes.
bool is_to_end(pid_t thread) {
  constexpr uint64_t kEnding = bit(SIGINT) | bit(SIGTERM) | bit(SIGQUIT) | bit(SIGHUP) | bit(SIGKILL);
  constexpr uint64_t kHarmless = bit(SIGCHLD) | bit(SIGCONT) | bit(SIGURG) | bit(SIGWINCH);  // unless they are caught
  const auto status = io::read_file("/proc/" + std::to_string(thread) + "/status");
  if (thread == 0 || !status) return true;
  const auto mask = [&](const std::string& name) {
    const size_t at = status.value().find("\n" + name + ":");
    return at == std::string::npos ? 0 : std::strtoull(status.value().c_str() + at + name.size() + 2, nullptr, 16);
  };
  const uint64_t pending = (mask("SigPnd") | mask("ShdPnd")) & ~(mask("SigBlk") | mask("SigIgn"));
  return (pending & (kEnding | ~(mask("SigCgt") | kHarmless))) != 0;
}

}  // namespace

void Unanswered::add(const std::shared_ptr<Entry>& entry) {
  {
    const io::MutexLock lock(mutex_);
    entry->number = ++last_;
    entries_.emplace(entry->number, entry);
  }
  adding = true;
  interrupted_before = false;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a number for interrupted()
  fuse_req_interrupt_func(entry->request, interrupted, reinterpret_cast<void*>(entry->number));
  adding = false;
  if (!interrupted_before || (entry->reads && !is_to_end(entry->thread))) return;
  if (!entry->answered.exchange(true)) {
    remove(entry->number);
    fuse_reply_err(entry->request, EINTR);
  }
}

void Unanswered::interrupted(fuse_req_t request, void* number) {
  if (adding) {
    interrupted_before = true;
    return;
  }
  Unanswered& all = static_cast<Parts*>(fuse_req_userdata(request))->unanswered;
  std::shared_ptr<Entry> entry;
  {
    const io::MutexLock lock(all.mutex_);
    const auto found = all.entries_.find(reinterpret_cast<uint64_t>(number));
    if (found == all.entries_.end()) return;  // it was answered this moment
    entry = found->second;
  }
  if (entry->reads && !is_to_end(entry->thread)) return;
  all.remove(entry->number);
  if (!entry->answered.exchange(true)) fuse_reply_err(request, EINTR);
}

void add_operations(fuse_lowlevel_ops& ops) {
  ops.init = op_init;
  ops.lookup = op_lookup;
  ops.forget = op_forget;
  ops.getattr = op_getattr;
  ops.readlink = op_readlink;
  ops.opendir = op_opendir;
  ops.readdir = op_readdir;
  ops.releasedir = op_releasedir;
  ops.open = op_open;
  ops.read = op_read;
  ops.flush = op_flush;
  ops.release = op_release;
  ops.fsync = op_fsync;
  ops.lseek = op_lseek;
  ops.statfs = op_statfs;
  ops.getxattr = op_getxattr;
  ops.listxattr = op_listxattr;
}

}  // namespace ckptfs::fs::remote_mount
