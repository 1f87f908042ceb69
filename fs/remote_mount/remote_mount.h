// A mounted remote: its committed steps, whole and read-only, on any machine and without a store.
//
//   /TAG            the union of what all slots hold of the step
//   /@I/TAG         exactly what slot I wrote, for loads by node
//   /views/TAG      made of the step when it is read (fs/views/view.h)
//
// It is a process and a FUSE session of its own, so that no network ever holds up a trainer. No thread of the session
// waits for the network: what has to be fetched is answered from another thread. Each request to the remote has
// RemoteMountOptions::time, from when it was asked for; then the answer is EIO. A caller who is interrupted is answered
// at once.
//
// Thread safety: stop() from any thread and from a signal handler; status() from any thread; all else from one.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fs/remote_mount/remote_mount_options.h"
#include "io/result.h"

namespace ckptfs::fs::remote_mount {

struct Parts;

class RemoteMount {
 public:
  // Tries the remote, and mounts it. ENOENT, in words: nothing was pushed there yet.
  static Result<std::unique_ptr<RemoteMount>> start(const RemoteMountOptions& options);
  ~RemoteMount();
  // Serves until it is unmounted or stop() is called.
  Result<> run();
  void stop();

  // Where `ckptfs status` finds the daemon: the xattr user.ckptfs.socket of the root. Before run().
  void set_socket(const std::string& path);
  // A name for this mount: 16 hexadecimal digits, the same for the same remote at the same place.
  const std::string& id() const;
  nlohmann::json status() const;
  std::string metrics() const;  // in the text format of Prometheus

 private:
  explicit RemoteMount(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace ckptfs::fs::remote_mount
