// Where writes meet inside a page. A stream of writes at unaligned offsets fills no page at the border of two: each by
// itself would have to read that page, change its part, and leave it to the page cache to write back. But while one of
// the two is being served the other mostly is, too: whichever comes second takes the part of the first, and writes the
// page whole, with its own, past the page cache. The first waits a moment for it, as long as such waits are not in
// vain: a writer of one request at a time never has one wait.
//
// Thread safety: Borders: all of it; lock: mutex_ (a leaf). A Border belongs to the thread of its write.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "io/result.h"

namespace ckptfs::fs {

class Borders {
 public:
  // One end of a write that is being served, and what it has of the page there: less than all of it.
  struct Border {
    enum class Side { head, tail };
    Side side;
    off_t at;  // where the write begins, or ends
    std::span<const std::byte> bytes;
    enum class State { none, offered, taken, written } state = State::none;  // guarded by mutex_
    std::optional<Error> error{};                                            // guarded by mutex_; once written
  };

  struct Met {
    Border* before = nullptr;  // the tail that `head` meets
    Border* after = nullptr;   // the head that `tail` meets
    bool alone = false;        // no other write is being served that ends inside a page
  };
  // What `head` and `tail` meet is taken: the caller writes it with its own, and must call written(), before it waits
  // for anything. The others of the two that have bytes are offered to writes that come, and withdraw() must be called.
  Met meet(Border& head, Border& tail);
  void written(Border& taken, std::optional<Error> error);
  // Returns whether nobody took it, so that it is still to be written. Whoever took it is waited for: an error if he
  // could not write it.
  Result<bool> withdraw(Border& offered);

 private:
  Border* take_or_offer(Border& own);

  std::mutex mutex_;
  std::condition_variable written_;
  std::vector<Border*> offered_;  // guarded by mutex_
  bool hopeful_ = false;          // guarded by mutex_; the last that was offered was taken
};

}  // namespace ckptfs::fs
