#include "fs/cli/doctor_checks.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "fs/cli/system.h"
#include "io/aligned_buffer.h"
#include "io/fd.h"
#include "io/process.h"
#include "io/sharing_probe.h"
#include "io/unmount.h"

namespace ckptfs::fs::cli {
namespace {

constexpr const char* kPageLimit = "/proc/sys/fs/fuse/max_pages_limit";
constexpr unsigned long kWantedPages = 257;
constexpr const char* kIdleDriver = "/sys/devices/system/cpu/cpuidle/current_driver";
constexpr const char* kHaltPoll = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

struct Version {
  unsigned major = 0, minor = 0;
  bool at_least(unsigned wanted_major, unsigned wanted_minor) const {
    return major > wanted_major || (major == wanted_major && minor >= wanted_minor);
  }
};

std::optional<Version> parse_version(const std::string& text) {
  Version version;
  if (std::sscanf(text.c_str(), "%u.%u", &version.major, &version.minor) != 2) return std::nullopt;
  return version;
}

bool has_sys_admin() {
  const auto status = io::read_file("/proc/self/status");
  if (!status) return false;
  const size_t at = status.value().find("CapEff:");
  if (at == std::string::npos) return false;
  return (std::strtoull(status.value().c_str() + at + 7, nullptr, 16) >> CAP_SYS_ADMIN & 1) != 0;
}

bool in_initial_user_namespace() {
  const auto map = io::read_file("/proc/self/uid_map");
  if (!map) return true;  // a kernel without user namespaces
  std::istringstream stream(map.value());
  uint64_t inside = 1, outside = 1, count = 0;
  stream >> inside >> outside >> count;
  return inside == 0 && outside == 0 && count == UINT32_MAX;
}

Check check_mkfs(bool needed) {
  Check check{"mkfs.xfs", Verdict::ok, "installed", ""};
  if (io::find_program("mkfs.xfs")) return check;
  check.verdict = needed ? Verdict::fail : Verdict::warn;
  check.found = "not installed: images cannot be made";
  check.advice = "apt install xfsprogs";
  return check;
}

Check check_sharing(const std::string& folder, const io::SharingCapability& capability) {
  Check check{"file system", Verdict::ok, folder + ": " + capability.filesystem, ""};
  if (!capability.clone) {
    check.verdict = Verdict::warn;
    check.found += ", without reflink: no store can stand on it directly";
    check.advice = "ckptfs mount --image SIZE STORE MOUNTPOINT, or a folder on XFS (mkfs.xfs -m reflink=1)";
    return check;
  }
  check.found += ", with reflink";
  check.found += capability.dedupe ? ", dedupe" : "";
  check.found += capability.extent_size_hint ? ", extent size hint" : "";
  if (!capability.extent_size_hint) {
    check.verdict = Verdict::warn;
    check.found += "; no copy-on-write extent hint: overwritten files fragment after saves";
    check.advice = "XFS has the hint";
  }
  return check;
}

Result<io::Fd> scratch_file(const std::string& folder) {
  auto file = io::open_at(AT_FDCWD, folder, O_TMPFILE | O_RDWR);
  if (file || file.error().errno_value() != EOPNOTSUPP) return file;
  std::string name = folder + "/.ckptfs-doctor-XXXXXX";
  io::Fd named(::mkostemp(name.data(), O_CLOEXEC));
  if (!named) return last_error(name);
  if (::unlink(name.c_str()) != 0) return last_error(name);
  return named;
}

Check check_alignment(const std::string& folder) {
  const auto file = scratch_file(folder);
  if (!file) return {"O_DIRECT", Verdict::fail, file.error().message(), "name a folder that can be written to"};
  const io::DirectAlignment alignment = io::direct_alignment(file.value().get());
  Check check{
      "O_DIRECT", Verdict::ok,
      "memory at " + std::to_string(alignment.memory) + ", offsets at " + std::to_string(alignment.offset) + " bytes",
      ""};
  if (!alignment.harmful()) {
    check.found += ": harmless for DeepSpeed";
    return check;
  }
  check.verdict = Verdict::warn;
  check.found += ": DeepSpeed's unaligned reads fail here without a word, and it trains on garbage";
  check.advice =
      "use the mount with -o odirect=safe (the default), which serves them in the daemon; plain files here "
      "stay harmful";
  return check;
}

}  // namespace

Check check_loop(bool needed) {
  Check check{"loop devices", Verdict::ok, "/dev/loop-control is there", ""};
  if (access("/dev/loop-control", F_OK) == 0) return check;
  check.verdict = needed ? Verdict::fail : Verdict::warn;
  check.found = "no /dev/loop-control: images cannot be mounted";
  check.advice = "modprobe loop; in a container, pass the loop devices in";
  return check;
}

Check check_kernel(const std::string& release) {
  Check check{"kernel", Verdict::ok, release, ""};
  const auto version = parse_version(release);
  if (version && version->at_least(6, 9)) return check;
  check.verdict = Verdict::warn;
  check.advice = "Linux 6.9 or newer (Debian 12: the kernel of bookworm-backports)";
  check.found += version && version->at_least(6, 6) ? ": no passthrough before 6.9, every byte goes through the daemon"
                                                    : ": no passthrough before 6.9, and no shared mappings before 6.6";
  return check;
}

Check check_libfuse(const std::string& version) {
  Check check{"libfuse", Verdict::ok, version, ""};
  const auto parsed = parse_version(version);
  if (parsed && parsed->at_least(3, 17)) return check;
  check.verdict = Verdict::fail;
  check.found += ": no passthrough before 3.17";
  check.advice = "scripts/setup builds 3.17, then scripts/build";
  return check;
}

Check check_fuse_device() {
  Check check{"/dev/fuse", Verdict::ok, "can be opened", ""};
  const auto device = io::open_at(AT_FDCWD, "/dev/fuse", O_RDWR);
  if (device) return check;
  check.verdict = Verdict::fail;
  check.found = device.error().message();
  const int code = device.error().errno_value();
  check.advice = code == EACCES ? "run as root" : "modprobe fuse; in a container: --device /dev/fuse";
  if (code == EPERM) check.advice = "the container may not open it: run it with --device /dev/fuse, not -v /dev/fuse";
  return check;
}

Check check_privileges() {
  Check check{"privileges", Verdict::ok, "root with CAP_SYS_ADMIN in the initial user namespace", ""};
  if (geteuid() != 0) {
    const bool can = io::find_program(io::kUserUnmounter).has_value();
    check.verdict = can ? Verdict::warn : Verdict::fail;
    check.found = can ? "an ordinary user: no passthrough, every byte goes through the daemon; no images"
                      : "an ordinary user without fusermount3: nothing can be mounted";
    check.advice = can ? "sudo ckptfs ... has both, with a store of its own" : "apt install fuse3, or sudo ckptfs ...";
  } else if (!has_sys_admin()) {
    check.verdict = Verdict::fail;
    check.found = "root without CAP_SYS_ADMIN: nothing can be mounted";
    check.advice = "in a container: --cap-add SYS_ADMIN";
  } else if (!in_initial_user_namespace()) {
    check.verdict = Verdict::warn;
    check.found = "root of a user namespace: no passthrough, every byte goes through the daemon";
    check.advice = "mount outside the container (or without a user namespace), and pass the mount in";
  }
  return check;
}

Check check_page_limit() {
  Check check{"request size", Verdict::ok, "", ""};
  const auto limit = io::read_file(kPageLimit);
  if (!limit) {
    check.verdict = Verdict::warn;
    check.found = "no fs.fuse.max_pages_limit: unaligned requests of 1 MiB are split in two";
    check.advice = "Linux 6.13 or newer";
    return check;
  }
  const unsigned long pages = std::strtoul(limit.value().c_str(), nullptr, 10);
  check.found = "fs.fuse.max_pages_limit is " + std::to_string(pages);
  if (pages >= kWantedPages) return check;
  check.found += ", unaligned requests of 1 MiB need 257";
  if (access(kPageLimit, W_OK) == 0) {
    check.found += ": ckptfs mount raises it";
    return check;
  }
  check.verdict = Verdict::warn;
  check.advice = "sysctl fs.fuse.max_pages_limit=257, before the mount";
  return check;
}

// A request through the daemon wakes two processors. To wake a halted processor takes a call of the hypervisor.
Check check_wake_ups(const std::string& idle_driver, const std::string& polled_ns) {
  Check check{"wake-ups", Verdict::ok, "idle processors poll before they halt, or need no hypervisor", ""};
  if (idle_driver != "haltpoll" || polled_ns != "0") return check;
  check.verdict = Verdict::warn;
  check.found = "idle processors halt at once: what goes through the daemon may take twice as long";
  check.advice = std::string("echo 200000 > ") + kHaltPoll;
  return check;
}

Check check_wake_ups() {
  const auto line = [](const char* path) {
    const auto text = io::read_file(path);
    return text ? text.value().substr(0, text.value().find('\n')) : std::string();
  };
  return check_wake_ups(line(kIdleDriver), line(kHaltPoll));
}

std::vector<Check> check_folder(const std::string& folder) {
  const auto capability = io::probe_sharing(folder);
  std::vector<Check> checks;
  if (!capability) {
    checks.push_back(
        {"file system", Verdict::fail, capability.error().message(), "name an existing folder that can be written to"});
  } else {
    checks.push_back(check_sharing(folder, capability.value()));
    checks.push_back(check_alignment(folder));
  }
  const bool image_needed = capability && !capability.value().clone;
  checks.push_back(check_loop(image_needed));
  checks.push_back(check_mkfs(image_needed));
  return checks;
}

}  // namespace ckptfs::fs::cli
