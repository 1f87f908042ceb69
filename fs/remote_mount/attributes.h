// The attributes of what a remote mount shows, and who may enter a step. Stateless; any thread.
#pragma once

#include <sys/stat.h>

#include "fs/open/permission.h"
#include "fs/remote_mount/request.h"

namespace ckptfs::fs::remote_mount {

// How many seconds the kernel may believe an answer.
inline constexpr double kForEver = 86'400;  // what is in a step never changes
inline constexpr double kForList = 1;       // steps come and go
inline constexpr double kForSlots = 3600;

struct stat stat_of_top(const Parts& parts, InodeNumber inode);
// A step's own folder. What the list tells is enough, so that `ls -l` asks for no step.
struct stat stat_of_step(const Parts& parts, const Place& place, const meta::remote::CommittedStep& step);
struct stat stat_of_entry(const Parts& parts, const OpenedStep& step, const StepFiles& files, const Place& place);
struct stat stat_of_node(const Parts& parts, const RemoteView& view, const Place& place, const views::View::Node& node);
mode_t type_of(meta::remote::Entry::Kind kind);

// `seconds`: as above.
void reply_entry(const RemoteRequest& request, const struct stat& st, double seconds);
void reply_attributes(const RemoteRequest& request, const struct stat& st, double seconds);

// May `who` do what is `wanted` in the folder that the request is about? The list shows every step's own folder as open
// to all, so its mode is asked here; the kernel asks those of other folders.
bool may_enter(const RemoteRequest& request, const Credentials& who, const OpenedStep& step, const StepFiles& files,
               unsigned wanted);
// May the kernel answer by itself what is in the folder? Not in a step's own, if that is not open to all: the kernel
// takes it to be so, and asks for no lookup of what it knows.
bool is_open_to_all(const RemoteRequest& request, const OpenedStep& step, const StepFiles& files);

// The tree that the place is in.
const StepFiles& files_of(const OpenedStep& step, const Place& place);

}  // namespace ckptfs::fs::remote_mount
