// Names, attributes, links and folders of a remote mount.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "fs/remote_mount/attributes.h"
#include "fs/remote_mount/operations.h"
#include "fs/remote_mount/request.h"
#include "io/text.h"
#include "meta/names.h"
#include "meta/tree/access.h"

namespace ckptfs::fs::remote_mount {

namespace {

using Kind = Place::Kind;
using meta::remote::Entry;
using views::View;

// "@3"
std::optional<uint32_t> slot_named(const Parts& parts, std::string_view name) {
  const auto slot = name.starts_with('@') ? io::parse_number<uint32_t>(name.substr(1)) : std::nullopt;
  const bool fits = slot && "@" + std::to_string(*slot) == name && *slot < std::min(parts.facts.slots, kMostSlots);
  return fits ? slot : std::nullopt;
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

}  // namespace

void add_name_operations(fuse_lowlevel_ops& ops) {
  ops.lookup = op_lookup;
  ops.getattr = op_getattr;
  ops.readlink = op_readlink;
  ops.opendir = op_opendir;
  ops.readdir = op_readdir;
  ops.releasedir = op_releasedir;
}

}  // namespace ckptfs::fs::remote_mount
