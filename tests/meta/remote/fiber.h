// A function that runs on a stack of its own, whenever somebody resumes it, until it yields. What the simulation's
// processes run on: a turn is passed on in a fraction of a microsecond, which threads cannot do. One thread resumes a
// fiber; the fiber must end before it is destroyed.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace ckptfs::meta::remote::testing {

class Fiber {
 public:
  explicit Fiber(std::function<void()> run);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // Goes on until the fiber yields, or ends.
  void resume();
  // Called by what runs in it.
  void yield();
  bool has_ended() const { return ended_; }

 private:
  static void enter(unsigned high, unsigned low);
  void leave(bool for_good);

  const std::function<void()> run_;
  std::byte* stack_ = nullptr;
  ucontext_t own_{}, resumer_{};
  bool ended_ = false;

  // What sanitizers must know of a stack.
  void *fake_own_ = nullptr, *fake_resumer_ = nullptr, *thread_own_ = nullptr, *thread_resumer_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_size_ = 0;
};

}  // namespace ckptfs::meta::remote::testing
