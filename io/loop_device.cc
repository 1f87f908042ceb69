#include "io/loop_device.h"

#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "io/fd.h"
#include "io/log.h"
#include "io/process.h"

namespace ckptfs::io {

namespace {

std::string sysfs_folder(const std::string& device) {
  return "/sys/block/" + std::filesystem::path(device).filename().string();
}

// Returns the first line of a sysfs file.
Result<std::string> read_line(const std::string& path) {
  TRY_ASSIGN(std::string text, read_file(path));
  return text.substr(0, text.find('\n'));
}

Result<LoopDevice> describe(const std::string& device) {
  LoopDevice loop;
  loop.device = device;
  TRY_ASSIGN(loop.numbers, read_line(sysfs_folder(device) + "/dev"));
  TRY_ASSIGN(const std::string direct, read_line(sysfs_folder(device) + "/loop/dio"));
  loop.direct = direct.starts_with("1");
  return loop;
}

// Returns the file behind the device, or an empty string if the device is detached.
Result<std::string> backing_file(const std::string& device) {
  Result<std::string> file = read_line(sysfs_folder(device) + "/loop/backing_file");
  if (file) return file;
  const int e = file.error().errno_value();
  if (e == ENOENT || e == ENODEV || e == ENXIO) return std::string();
  return file;
}

}  // namespace

Result<std::vector<LoopDevice>> loops_of(const std::string& file) {
  TRY_ASSIGN(const std::string listed,
             run_checked({"losetup", "--list", "--noheadings", "--raw", "--output", "NAME", "--associated", file}));
  std::vector<LoopDevice> loops;
  std::istringstream lines(listed);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    TRY_ASSIGN(LoopDevice loop, describe(line));
    loops.push_back(std::move(loop));
  }
  return loops;
}

Result<LoopDevice> attach_loop(const std::string& file, uint32_t sector) {
  const std::vector<std::string> plain = {"losetup",     "--find",        "--show",
                                          "--nooverlap", "--sector-size", std::to_string(sector)};
  std::vector<std::string> arguments = plain;
  arguments.insert(arguments.end(), {"--direct-io=on", file});
  Result<std::string> shown = run_checked(arguments);
  if (!shown) {
    log::warn("{}: a loop device with direct I/O was refused ({}); trying without", file, shown.error().message());
    arguments = plain;
    arguments.push_back(file);
    shown = run_checked(arguments);
  }
  if (!shown) return std::move(shown).error();
  const std::string device = shown.value().substr(0, shown.value().find('\n'));
  Result<LoopDevice> loop = describe(device);
  if (!loop) {
    const Result<> detached = detach_loop(device);
    if (!detached) log::error("{}: {}", device, detached.error().message());
    return loop;
  }
  if (!loop.value().direct) {
    log::warn("{}: the loop driver works without direct I/O here: data is cached twice, and slower", file);
  }
  return loop;
}

Result<> detach_loop(const std::string& device) {
  TRY_ASSIGN(const std::string before, backing_file(device));
  if (before.empty()) return success();
  TRY(run_checked({"losetup", "--detach", device}));
  // losetup also succeeds if the kernel only marked the device to go with its last user. A scan by udev, for instance,
  // keeps it for a moment.
  for (int attempt = 0; attempt < 50; ++attempt) {
    TRY_ASSIGN(const std::string after, backing_file(device));
    if (after != before) return success();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return Error(EBUSY, device + " still stands on " + before + ": something else has it open or mounted");
}

Result<> refuse_discards(const std::string& device) {
  const std::string path = sysfs_folder(device) + "/queue/discard_max_bytes";
  TRY_ASSIGN(const Fd fd, open_at(AT_FDCWD, path, O_WRONLY));
  return write_full(fd.get(), std::as_bytes(std::span("0", 1)), 0);
}

}  // namespace ckptfs::io
