// Shared by the tests of loads and saves: files on XFS, a twin whose copies end late, and a small ring.
#pragma once

#include <memory>

#include "gpu/staging.h"
#include "gpu/twin.h"
#include "tests/io/testing.h"

namespace ckptfs::gpu::testing {

inline constexpr size_t kSlot = 64 << 10;

class StagingTest : public io::testing::XfsTest {
 protected:
  void SetUp() override {
    XfsTest::SetUp();
    if (IsSkipped()) return;
    twin_ = std::make_shared<Twin>(std::chrono::microseconds(300));
    auto made = Staging::make(twin_, {.bytes = 8 * kSlot, .slot = kSlot, .lanes = 2});
    ASSERT_OK(made);
    staging_ = std::move(made).value();
  }

  std::shared_ptr<Twin> twin_;
  std::shared_ptr<Staging> staging_;
};

}  // namespace ckptfs::gpu::testing
