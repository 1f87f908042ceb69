#include "io/fault.h"

#ifdef CKPTFS_FAULT_POINTS

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <thread>

#include "io/mutex.h"
#include "io/text.h"

namespace ckptfs::io {

namespace {

struct Fault {
  std::string value;     // without the count
  uint64_t fire_at = 0;  // 0: at every hit
  uint64_t hits = 0;
};

bool is_action(std::string_view value) {
  return value == "kill" || value.starts_with("error:") || value.starts_with("sleep:");
}

// A leading number is a count only if an action follows. "4:512" is a value without a count.
Fault parse_fault(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon != std::string::npos && is_action(std::string_view(text).substr(colon + 1))) {
    if (const auto count = parse_number<uint64_t>(std::string_view(text).substr(0, colon))) {
      return {text.substr(colon + 1), *count, 0};
    }
  }
  return {text, 0, 0};
}

std::optional<int> parse_errno(std::string_view text) {
  if (const auto number = parse_number<uint64_t>(text)) return static_cast<int>(*number);
  for (int candidate = 1; candidate < 134; ++candidate) {
    const char* name = ::strerrorname_np(candidate);
    if (name != nullptr && text == name) return candidate;
  }
  return std::nullopt;
}

// All faults that are set. Thread-safe.
class FaultTable {
 public:
  FaultTable() {
    const char* environment = std::getenv("CKPTFS_FAULTS");
    std::string_view rest = environment == nullptr ? "" : environment;
    while (!rest.empty()) {
      const std::string_view entry = rest.substr(0, rest.find(';'));
      rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
      const size_t equals = entry.find('=');
      if (equals != std::string_view::npos) {
        set(std::string(entry.substr(0, equals)), std::string(entry.substr(equals + 1)));
      }
    }
  }

  void set(const std::string& name, const std::string& value) {
    const MutexLock lock(mutex_);
    if (value.empty()) {
      faults_.erase(name);
    } else {
      faults_.insert_or_assign(name, parse_fault(value));
    }
  }

  std::optional<std::string> value(std::string_view name) const {
    const MutexLock lock(mutex_);
    const auto found = faults_.find(name);
    if (found == faults_.end()) return std::nullopt;
    return found->second.value;
  }

  // Counts the hit. Returns the action to perform now, if any.
  std::optional<std::string> hit(std::string_view name) {
    const MutexLock lock(mutex_);
    const auto found = faults_.find(name);
    if (found == faults_.end()) return std::nullopt;
    Fault& fault = found->second;
    ++fault.hits;
    if (fault.fire_at != 0 && fault.hits != fault.fire_at) return std::nullopt;
    return fault.value;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, Fault, std::less<>> faults_ GUARDED_BY(mutex_);
};

FaultTable& table() {
  static FaultTable instance;
  return instance;
}

Result<> perform(const char* name, const std::string& action) {
  if (action == "kill") {
    ::kill(::getpid(), SIGKILL);
    for (;;) ::pause();
  }
  const std::string_view argument = std::string_view(action).substr(std::strlen("error:"));
  if (action.starts_with("sleep:")) {
    const auto milliseconds = parse_number<uint64_t>(argument);
    if (!milliseconds) return Error(EINVAL, std::string("fault point ") + name + ": no number in " + action);
    std::this_thread::sleep_for(std::chrono::milliseconds(*milliseconds));
    return success();
  }
  const auto number = parse_errno(argument);
  if (!number) return Error(EINVAL, std::string("fault point ") + name + ": no errno in " + action);
  return Error(*number, std::string("fault point ") + name + ": " + std::system_category().message(*number));
}

}  // namespace

Result<> fault_point(const char* name) {
  const std::optional<std::string> action = table().hit(name);
  if (!action || !is_action(*action)) return success();
  return perform(name, *action);
}

std::optional<std::string> fault_value(const char* name) { return table().value(name); }

void set_fault(const std::string& name, const std::string& value) { table().set(name, value); }

}  // namespace ckptfs::io

#endif  // CKPTFS_FAULT_POINTS
