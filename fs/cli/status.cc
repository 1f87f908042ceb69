// ckptfs status: tells what a mount is doing, and how.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "fs/cli/format.h"
#include "fs/cli/path_command.h"
#include "fs/cli/system.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

void line(const char* title, const std::string& text) { std::printf("%-12s %s\n", title, printable(text).c_str()); }

std::string scalar(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string size_of(const json& object, const char* key) { return human_size(object.value(key, uint64_t{0})); }

void print_mode(const json& status) {
  const json passthrough = status.value("passthrough", json::object());
  const std::string reason = passthrough.value("reason", "");
  const std::string mode =
      passthrough.value("active", false) ? "passthrough" : "direct (every byte goes through the daemon)";
  line("mode", mode + (reason.empty() ? "" : ": " + reason));
  const json alignment = status.value("alignment", json::object());
  const bool harmful = alignment.value("harmful", false);
  const bool safe = status.value("odirect", "safe") == "safe";
  std::string effect = "harmless for DeepSpeed";
  if (harmful)
    effect = safe ? "served in the daemon" : "NOT served in the daemon: DeepSpeed's unaligned reads fail silently";
  line("O_DIRECT", status.value("odirect", "safe") + "; the device wants memory at " +
                       std::to_string(alignment.value("memory", 0)) + ", offsets at " +
                       std::to_string(alignment.value("offset", 0)) + " bytes: " + effect);
}

void print_space(const json& space) {
  line("space", size_of(space, "free") + " free of " + size_of(space, "total") + " (kept back: reserve " +
                    size_of(space, "reserve") + ", ballast " + size_of(space, "ballast") + ")");
  line("owed", size_of(space, "owed") + " that overwriting the live swap files would newly take");
}

void print_recovery(const json& recovery) {
  const auto count = [&](const char* key) { return recovery.value(key, uint64_t{0}); };
  line("last end", recovery.value("clean", true) ? "clean" : "not clean: the store was recovered at this start");
  if (!recovery.value("inspected", true)) line("inspection", "files are being looked at, since the last end");
  line("at the start", counted(count("inodes"), "inode") + ", " + counted(count("blobs"), "blob"));
  if (count("orphan_blobs") > 0) {
    line("orphans", counted(count("orphan_blobs"), "nameless blob") + " kept; ckptfs fsck STORE lists them");
  }
  for (const json& path : recovery.value("damaged", json::array())) line("DAMAGED", scalar(path));
}

void print_care(const json& care) {
  const auto count = [&](const char* key) { return care.value(key, uint64_t{0}); };
  line("digests", counted(count("digested_files"), "file") + " (" + size_of(care, "bytes_digested") +
                      ") since the mount, " + counted(count("waiting_files"), "file") + " waiting; " +
                      size_of(care, "bytes_scrubbed") + " read again");
  line("dedup", size_of(care, "bytes_shared") + " that were there twice are shared, since the mount");
  for (const json& path : care.value("damaged", json::array())) line("DAMAGED", scalar(path));
}

// Prints the counters that are not zero. A group of counters has a line of its own.
void print_counters(const char* title, const json& counters) {
  std::string text;
  for (const auto& [name, value] : counters.items()) {
    if (value.is_object()) {
      print_counters(name.c_str(), value);
    } else if (value != 0) {
      const bool bytes = name.starts_with("bytes_") && value.is_number_unsigned();
      text += (text.empty() ? "" : ", ") + name + " " + (bytes ? human_size(value.get<uint64_t>()) : scalar(value));
    }
  }
  if (!text.empty()) line(title, text);
}

void print_status(const json& status) {
  line("mountpoint", status.value("mountpoint", ""));
  line("store", status.value("store", "") + " (id " + status.value("mount_id", "") + ")");
  line("daemon", "pid " + std::to_string(status.value("pid", 0)) + ", version " + status.value("version", ""));
  if (const std::string http = status.value("http", ""); !http.empty()) line("page", "http://" + http + "/");
  print_mode(status);
  print_space(status.value("space", json::object()));
  print_recovery(status.value("recovery", json::object()));
  print_care(status.value("care", json::object()));
  line("open files", std::to_string(status.value("open_files", uint64_t{0})));
  print_counters("counters", status.value("counters", json::object()));
  for (const json& warning : status.value("warnings", json::array())) line("WARNING", scalar(warning));
}

// Of a mounted remote.
void print_remote_status(const json& status) {
  line("mountpoint", status.value("mountpoint", ""));
  const json remote = status.value("remote", json::object());
  line("remote", remote.value("url", "") + " (id " + remote.value("id", "") + ", " +
                     counted(remote.value("slots", uint64_t{1}), "slot") + ")");
  line("daemon", "pid " + std::to_string(status.value("pid", 0)) + ", version " + status.value("version", ""));
  if (const std::string http = status.value("http", ""); !http.empty()) line("page", "http://" + http + "/");
  line("steps", std::to_string(status.value("steps", uint64_t{0})) + " in the last list");
  if (const json cache = status.value("cache", json()); cache.is_object()) {
    line("cache", size_of(cache, "bytes") + " of " + size_of(cache, "most") + " in " + cache.value("folder", ""));
  }
  line("open files", std::to_string(status.value("open_files", uint64_t{0})));
  print_counters("requests", status.value("requests", json::object()));
  print_counters("chunks", status.value("chunks", json::object()));
  if (const json trouble = status.value("trouble", json()); trouble.is_object()) {
    line("STALLED", "for " + human_age(trouble.value("seconds", int64_t{0})) + ": " + trouble.value("text", ""));
  }
  if (const json failure = status.value("last_failure", json()); failure.is_object()) {
    line("last error", failure.value("text", ""));
  }
}

Result<int> run_status(const Target& target, bool as_json) {
  TRY_ASSIGN(const json status, ask_status(target.mount));
  return print_answer(as_json, status,
                      [&] { status.contains("remote") ? print_remote_status(status) : print_status(status); });
}

}  // namespace

void add_status(CLI::App& app, Chosen& chosen) {
  add_path_command(
      app, chosen,
      {"status", "Show a mount's mode, space, recovery and counters", "MOUNTPOINT", "The mount (default: the only one)",
       "Example:\n  ckptfs status\n  ckptfs status --json /ckpt", run_status});
}

}  // namespace ckptfs::fs::cli
