#include "fs/remote_mount/pages.h"

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "fs/control/metrics.h"

namespace ckptfs::fs::remote_mount {
namespace {

using nlohmann::json;

constexpr std::string_view kHead =
    "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"5\">"
    "<title>ckptfs remote</title><style>body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:50em;"
    "padding:0 1em;color-scheme:light dark}td{padding:.2em 1.5em .2em 0;vertical-align:top}td+td{font-variant-numeric:"
    "tabular-nums;overflow-wrap:anywhere}.bad{color:#c33}</style></head><body><h1>ckptfs remote</h1><table>";

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string row(std::string_view title, const std::string& text, bool is_bad = false) {
  return fmt::format("<tr{}><td>{}</td><td>{}</td></tr>", is_bad ? " class=\"bad\"" : "", title, escaped(text));
}

std::string mebibytes(uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

uint64_t number_in(const json& status, const char* group, const char* name) {
  return status.at(group).is_null() ? 0 : status.at(group).value(name, uint64_t{0});
}

std::string page_of(const json& status) {
  std::string page(kHead);
  page += row("remote", status.at("remote").value("url", ""));
  page += row("mounted at", status.value("mountpoint", ""));
  page += row("steps", std::to_string(status.value("steps", uint64_t{0})));
  page += row("fetched", mebibytes(number_in(status, "chunks", "bytes_fetched")));
  page += row("in the cache",
              mebibytes(number_in(status, "cache", "bytes")) + " of " + mebibytes(number_in(status, "cache", "most")));
  page += row("open files", std::to_string(status.value("open_files", uint64_t{0})));
  page += row("errors", std::to_string(status.value("errors", uint64_t{0})));
  if (status.contains("trouble")) page += row("stands in the way", status["trouble"].value("text", ""), true);
  if (status.contains("last_failure")) page += row("last failure", status["last_failure"].value("text", ""), true);
  return page + "</table></body></html>\n";
}

}  // namespace

std::string RemoteMount::metrics() const {
  const json now = status();
  std::string text;
  const auto add = [&](std::string_view name, std::string_view help, std::string_view type, uint64_t value) {
    fmt::format_to(std::back_inserter(text), "# HELP ckptfs_{0} {1}\n# TYPE ckptfs_{0} {2}\nckptfs_{0} {3}\n", name,
                   help, type, value);
  };
  const auto of = [&](const char* group, const char* name) { return number_in(now, group, name); };
  add("remote_mount_steps", "Steps in the last list.", "gauge", now.value("steps", uint64_t{0}));
  add("remote_mount_open_files", "Files that are open.", "gauge", now.value("open_files", uint64_t{0}));
  add("remote_mount_requests_total", "Requests of the kernel.", "counter", now.value("served", uint64_t{0}));
  add("remote_mount_errors_total", "Requests of the kernel that failed; each is in the log.", "counter",
      now.value("errors", uint64_t{0}));
  add("remote_mount_gets_total", "Requests that read an object, with all tries.", "counter", of("requests", "gets"));
  add("remote_mount_lists_total", "Requests for a list.", "counter", of("requests", "lists"));
  add("remote_mount_retries_total", "Requests that were tried again.", "counter", of("requests", "retries"));
  add("remote_mount_fetched_bytes_total", "Of chunks, each compared with its digest.", "counter",
      of("chunks", "bytes_fetched"));
  add("remote_mount_memory_chunks_total", "Chunks that were in memory.", "counter", of("chunks", "from_memory"));
  add("remote_mount_cache_chunks_total", "Chunks that were in the cache.", "counter", of("chunks", "from_cache"));
  add("remote_mount_cache_bytes", "What the cache holds.", "gauge", of("cache", "bytes"));
  add("remote_mount_stalled_seconds", "For so long every request to the remote has failed; 0: they succeed.", "gauge",
      now.contains("trouble") ? now["trouble"].value("seconds", uint64_t{0}) : 0);
  return text;
}

void add_pages(HttpServer& server, const RemoteMount& mount) {
  using Guard = HttpServer::Guard;
  using Pace = HttpServer::Pace;
  server.add("/", Pace::quick, Guard::token, [&mount] {
    return HttpServer::Answer{200, "text/html; charset=utf-8", page_of(mount.status())};
  });
  server.add("/api/state", Pace::quick, Guard::token, [&mount] {
    return HttpServer::Answer{200, "application/json", mount.status().dump()};
  });
  server.add("/metrics", Pace::quick, Guard::token, [&mount] {
    return HttpServer::Answer{200, kMetricsType, mount.metrics()};
  });
}

}  // namespace ckptfs::fs::remote_mount
