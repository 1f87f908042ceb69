// A mounted ckptfs: the store, the kernel session and the threads between them.
#pragma once

#include <memory>

#include "fs/base/mount_options.h"
#include "io/result.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

class Filesystem;

class Mount {
 public:
  // Opens the store and mounts it; the kernel may send requests as soon as this returns, run() answers them.
  static Result<std::unique_ptr<Mount>> start(const MountOptions& options);
  // Serves until unmounted or stop() is called; then makes everything durable and closes the store.
  Result<> run();
  // Ends run(). Async-signal-safe.
  void stop();
  ~Mount();

  meta::Store& store();
  // What the operations work on, for the control socket.
  Filesystem& filesystem();
  const MountOptions& options() const;

  struct Internals;

 private:
  explicit Mount(std::unique_ptr<Internals> internals);
  std::unique_ptr<Internals> internals_;
};

}  // namespace ckptfs::fs
