// How a store is mounted: what `ckptfs mount` and its -o options say. Values only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace ckptfs::fs {

enum class PassthroughOption { automatic, on, off };
enum class OdirectOption { safe, raw };

// What -o says of how a store is mounted.
struct GivenOptions {
  PassthroughOption passthrough = PassthroughOption::automatic;
  OdirectOption odirect = OdirectOption::safe;
  std::optional<uint32_t> uid, gid;  // owner of the root and /steps; default SUDO_UID, else the mountpoint's owner
  unsigned quiet_seconds = 30;  // -o quiet=: maintenance takes files not written for so long (meta/care/maintenance.h)
  unsigned scrub_seconds = 14 * 86400;  // -o scrub=: in which all is read once against its digests; 0: never
  bool show_views = false;              // -o show_views: is /views in the root's listing?
  bool read_only = false;               // -o ro: nobody but the daemon changes anything, and no rule removes anything
  bool no_exec = false;                 // -o noexec
  bool adopt = true;                    // -o adopt=: may new files share blocks of what they will probably hold?
};

struct MountOptions : GivenOptions {
  std::string store;       // absolute; the folder with meta/ and blobs/ (inside the image where there is one)
  std::string image;       // the file that this folder's file system is in, where that is ours; empty: none
  std::string store_name;  // what the user called it, for messages and `mount`'s source column
  std::string mountpoint;  // absolute
  bool for_others = true;  // may other users look into it? A mount by an ordinary user: -o allow_other
  std::function<void()> before_mount;  // called by start() before the kernel mounts anything
  // Called by run() when no request is served any more, before the store closes: whoever else uses the store or the
  // mount (the control socket) must be done with it when this returns.
  std::function<void()> before_close;
};

}  // namespace ckptfs::fs
