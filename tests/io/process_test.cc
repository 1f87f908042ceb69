#include "io/process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "tests/io/testing.h"

namespace ckptfs::io {
namespace {

Result<ProcessOutput> shell(const std::string& script) { return run_process({"sh", "-c", script}); }

TEST(ProcessTest, KeepsOutputAndStatus) {
  const auto output = shell("echo out; echo err >&2; exit 3");
  ASSERT_OK(output);
  EXPECT_EQ(output.value().out, "out\n");
  EXPECT_EQ(output.value().err, "err\n");
  EXPECT_EQ(output.value().status, 3);
}

TEST(ProcessTest, MoreThanAPipeHoldsOnBoth) {
  const auto output = shell("head -c 500000 /dev/zero; head -c 400000 /dev/zero >&2; head -c 5 /dev/zero");
  ASSERT_OK(output);
  EXPECT_EQ(output.value().out.size(), 500'005u);
  EXPECT_EQ(output.value().err.size(), 400'000u);
}

TEST(ProcessTest, ASignalIsAStatus) {
  const auto output = shell("kill -KILL $$");
  ASSERT_OK(output);
  EXPECT_EQ(output.value().status, 128 + SIGKILL);
}

TEST(ProcessTest, WhatItInherits) {
  const Fd ours(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::signal(SIGPIPE, SIG_IGN);
  const auto output = shell("cat; echo $LC_ALL; ls /proc/self/fd | wc -l; kill -PIPE $$");
  std::signal(SIGPIPE, SIG_DFL);
  ASSERT_OK(output);
  // It has no input, LC_ALL=C, and only the descriptors 0 to 2 and that of ls itself; a signal that we ignore ends it.
  EXPECT_EQ(output.value().out, "C\n4\n") << output.value().err;
  EXPECT_EQ(output.value().status, 128 + SIGPIPE);
}

TEST(ProcessTest, AMissingProgramIsNamed) {
  const auto output = run_process({"no-such-program"});
  EXPECT_ERRNO(ENOENT, output);
  EXPECT_NE(output.error().message().find("no-such-program"), std::string::npos);
  EXPECT_ERRNO(ENOENT, run_process({"/no/such/program"}));
  EXPECT_ERRNO(EINVAL, run_process({}));
}

TEST(ProcessTest, SystemProgramsAreFoundWithoutPath) {
  const char* path = std::getenv("PATH");
  const std::string before = path == nullptr ? "" : path;
  ::setenv("PATH", "/no/such/folder", 1);
  EXPECT_OK(run_checked({"true"}));
  ::setenv("PATH", before.c_str(), 1);
}

TEST(RunCheckedTest, FailureCarriesTheProgramsWords) {
  EXPECT_EQ(run_checked({"echo", "hello"}).value(), "hello\n");
  const auto failed = run_checked({"sh", "-c", "echo it broke >&2; exit 4"});
  EXPECT_ERRNO(EIO, failed);
  EXPECT_NE(failed.error().message().find("exit status 4: it broke"), std::string::npos) << failed.error().message();
}

}  // namespace
}  // namespace ckptfs::io
