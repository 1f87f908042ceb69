// A mounted ckptfs: the store, the kernel session and the threads between them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/result.h"
#include "meta/store.h"

namespace ckptfs::fs {

enum class PassthroughOption { automatic, on, off };
enum class OdirectOption { safe, raw };

struct MountOptions {
  std::string store;       // absolute; the folder with meta/ and blobs/ (inside the image where there is one)
  std::string image;       // the file that this folder's file system is in, where that is ours; empty: none
  std::string store_name;  // what the user called it, for messages and `mount`'s source column
  std::string mountpoint;  // absolute
  PassthroughOption passthrough = PassthroughOption::automatic;
  OdirectOption odirect = OdirectOption::safe;
  std::optional<uint32_t> uid, gid;     // owner of the root and /steps; default SUDO_UID, else the mountpoint's owner
  unsigned quiet_seconds = 30;          // -o quiet=: files not written for so long are looked after (meta/caretaker.h)
  unsigned scrub_seconds = 14 * 86400;  // -o scrub=: in which all is read once against its digests; 0: never
  bool show_views = false;              // -o show_views: is /views in the root's listing?
  bool read_only = false;               // -o ro: nobody but the daemon changes anything, and no rule removes anything
  bool no_exec = false;                 // -o noexec
  bool for_others = true;               // may other users look into it? A mount by an ordinary user: -o allow_other
  bool adopt = true;  // -o adopt=: may files begin, or go on, as clones of what they will probably hold?
  // Called by run() when no request is served any more, before the store closes: whoever else uses the store or the
  // mount (the control socket) must be done with it when this returns.
  std::function<void()> before_close;
};

class Filesystem;
struct Peer;

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
  // Everything `ckptfs status --json` shows: mode and why, alignment, space, recovery, counters, open files.
  nlohmann::json status() const;
  // Takes a save as setxattr does (thread of its own, notifications, counters), for the control socket.
  Result<nlohmann::json> save(const Peer& peer, const std::string& series_path, const std::string& tag);

  struct Internals;

 private:
  explicit Mount(std::unique_ptr<Internals> internals);
  std::unique_ptr<Internals> internals_;
};

}  // namespace ckptfs::fs
