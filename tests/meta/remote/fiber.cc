#include "tests/meta/remote/fiber.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CKPTFS_ADDRESS_SANITIZER
#endif
#if __has_feature(thread_sanitizer)
#define CKPTFS_THREAD_SANITIZER
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define CKPTFS_ADDRESS_SANITIZER
#endif
#ifdef __SANITIZE_THREAD__
#define CKPTFS_THREAD_SANITIZER
#endif

#ifdef CKPTFS_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CKPTFS_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace ckptfs::meta::remote::testing {
namespace {

constexpr size_t kStackBytes = size_t{1} << 20;  // address space: only what is touched takes memory

// Before and after a switch to another stack.
void begin_switch([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack, [[maybe_unused]] size_t size,
                  [[maybe_unused]] void* thread) {
#ifdef CKPTFS_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(fake, stack, size);
#endif
#ifdef CKPTFS_THREAD_SANITIZER
  __tsan_switch_to_fiber(thread, 0);
#endif
}
void end_switch([[maybe_unused]] void* fake, [[maybe_unused]] const void** stack, [[maybe_unused]] size_t* size) {
#ifdef CKPTFS_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(fake, stack, size);
#endif
}

}  // namespace

Fiber::Fiber(std::function<void()> run) : run_(std::move(run)) {
  void* const stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) throw std::system_error(errno, std::system_category(), "mmap");
  stack_ = static_cast<std::byte*>(stack);
  ::getcontext(&own_);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = kStackBytes;
  const auto self = reinterpret_cast<uintptr_t>(this);
  // makecontext passes ints on, so the address goes in two halves.
  ::makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
#ifdef CKPTFS_THREAD_SANITIZER
  thread_own_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef CKPTFS_THREAD_SANITIZER
  __tsan_destroy_fiber(thread_own_);
#endif
  ::munmap(stack_, kStackBytes);
}

void Fiber::enter(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>((uintptr_t{high} << 32) | low);
  end_switch(nullptr, &self->resumer_stack_, &self->resumer_size_);
  self->run_();
  self->ended_ = true;
  self->leave(true);
}

void Fiber::resume() {
#ifdef CKPTFS_THREAD_SANITIZER
  thread_resumer_ = __tsan_get_current_fiber();
#endif
  begin_switch(&fake_resumer_, stack_, kStackBytes, thread_own_);
  ::swapcontext(&resumer_, &own_);
  end_switch(fake_resumer_, nullptr, nullptr);
}

void Fiber::leave(bool for_good) {
  begin_switch(for_good ? nullptr : &fake_own_, resumer_stack_, resumer_size_, thread_resumer_);
  ::swapcontext(&own_, &resumer_);
  end_switch(fake_own_, &resumer_stack_, &resumer_size_);
}

void Fiber::yield() { leave(false); }

}  // namespace ckptfs::meta::remote::testing
