// What the daemon tells the kernel, or asks of it, of its own accord: over the session's connection, but not as the
// answer to a request.
//
// Thread safety: connect() before the first request; all else from any thread.
#pragma once

#include <fuse_lowlevel.h>

#include <string>

#include "io/result.h"
#include "meta/types.h"

namespace ckptfs::fs {

class KernelChannel {
 public:
  // `session` outlives every later call.
  void connect(fuse_session* session) { session_ = session; }

  // Ends the session's loop. The handshake ends itself so.
  void end_loop() const;
  // What the kernel caches of the inode's attributes, or under a name, is out of date. These wait for locks that a
  // request may hold: fs/kernel/notifications.h calls them on a thread of its own. What the kernel does not remember is
  // no error.
  void attributes_changed(meta::InodeNumber inode) const;
  void name_changed(meta::InodeNumber folder, const std::string& name) const;
  // Gives the calling thread a table of descriptors of its own, with the connection only. So what this
  // process has open and locked is closed when it is killed, although the thread may wait in the kernel. The thread
  // must neither write to the log afterwards nor open anything for others. Does nothing where a thread that hangs could
  // not be found by its connection (before Linux 6.17): release_hung_mounts finds it by the store's lock there.
  void leave_descriptors() const;
  // The kernel writes the dirty pages of the inode's mappings, by requests that other threads serve meanwhile.
  Result<> write_back(meta::InodeNumber inode) const;

  // Backing files of FUSE passthrough (Linux 6.9): the two ioctls on /dev/fuse, with their errors. libfuse's own
  // fuse_passthrough_open tells only that it failed, not why.
  //
  // Registers `descriptor`, of a regular file, with the connection (after its FUSE_INIT); the backing id, above 0. A
  // backing id from a read-only descriptor serves read-write opens too: the kernel opens the file again.
  Result<int> open_backing(int descriptor) const;
  Result<> close_backing(int backing_id) const;
  // Tries a backing id on this file: success means that passthrough works for files of its file system.
  Result<> probe_passthrough(const std::string& file) const;

 private:
  fuse_session* session_ = nullptr;
};

}  // namespace ckptfs::fs
