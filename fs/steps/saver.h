// Takes saves and seals steps, for whoever asks: the xattrs, the control socket, rotation. Each outcome is counted, the
// kernel is told of what it has to know, and saves are kept for the page.
//
// Thread safety: all of it, on the calling thread; takes no lock of its own.
#pragma once

#include <functional>
#include <string>

#include "fs/base/counters.h"
#include "fs/kernel/notifications.h"
#include "fs/open/peer.h"
#include "fs/steps/last_errors.h"
#include "fs/steps/save_history.h"
#include "io/result.h"
#include "meta/steps/save.h"
#include "meta/store/store.h"

namespace ckptfs::fs {

class Saver {
 public:
  // `saved`: called after each save; rotation may have to act on the new step.
  Saver(meta::Store& store, Notifications& notifications, SaveHistory& history, LastErrors& last_errors,
        Counters& counters, std::function<void()> saved)
      : store_(store),
        notifications_(notifications),
        history_(history),
        last_errors_(last_errors),
        counters_(counters),
        saved_(std::move(saved)) {}

  // Returns when the save is durable. Its error is kept for last_error.
  Result<meta::SaveResult> save(meta::InodeNumber series, const std::string& tag, const Peer& peer);
  // EBUSY: somebody writes to a file of the step.
  Result<> seal(meta::InodeNumber step);

 private:
  meta::Store& store_;
  Notifications& notifications_;
  SaveHistory& history_;
  LastErrors& last_errors_;
  Counters& counters_;
  const std::function<void()> saved_;
};

}  // namespace ckptfs::fs
