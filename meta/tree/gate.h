// A gate that parks: while it is closed, operations on the inodes it guards are set aside as closures and run when it
// opens; no thread waits in it. Saves close it around their clones (meta/steps/save.h), seals while they freeze
// (meta/steps/seal.cc), thinnings while they put files in place (meta/steps/thin.h).
//
// Thread safety: all of it. Lock: mutex_, never held while a closure runs.
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <unordered_set>
#include <utility>
#include <vector>

#include "io/mutex.h"
#include "meta/types.h"

namespace ckptfs::meta {

class Gate {
 public:
  // Passage through the gate; the operation counts as in flight until it is destroyed. Movable.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), epoch_(other.epoch_) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass();
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    friend class Gate;
    Pass(Gate* gate, unsigned epoch) : gate_(gate), epoch_(epoch) {}
    Gate* gate_ = nullptr;
    unsigned epoch_ = 0;
  };

  // A pass, or none: then the gate is closed for one of `inodes` and `retry` has been kept; it is called, on the thread
  // that opens the gate, to begin the operation anew.
  Pass enter(std::initializer_list<InodeNumber> inodes, std::function<void()> retry);

  // Closes the gate for `inodes` and waits until the operations that are in flight now have ended (they are short). One
  // closer at a time; it may close the closed gate again for other inodes.
  void close(std::unordered_set<InodeNumber> inodes);
  // Opens it and runs what was parked.
  void open();

 private:
  void leave(unsigned epoch);

  io::Mutex mutex_;
  io::CondVar idle_;
  unsigned epoch_ GUARDED_BY(mutex_) = 0;                 // 0 or 1, flipped by close
  std::array<size_t, 2> in_flight_ GUARDED_BY(mutex_){};  // operations that entered in each epoch
  bool closed_ GUARDED_BY(mutex_) = false;
  std::unordered_set<InodeNumber> guarded_ GUARDED_BY(mutex_);
  std::vector<std::function<void()>> parked_ GUARDED_BY(mutex_);
};

}  // namespace ckptfs::meta
