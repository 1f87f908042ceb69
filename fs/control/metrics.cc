#include "fs/control/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <functional>
#include <iterator>
#include <string_view>

namespace ckptfs::fs {
namespace {

// The text of the metrics. Each metric begins with its help and type.
class Metrics {
 public:
  void counter(std::string_view name, std::string_view help, uint64_t value) { single(name, help, "counter", value); }
  void gauge(std::string_view name, std::string_view help, uint64_t value) { single(name, help, "gauge", value); }
  void begin(std::string_view name, std::string_view help, std::string_view type) {
    fmt::format_to(out(), "# HELP ckptfs_{} {}\n# TYPE ckptfs_{} {}\n", name, help, name, type);
  }
  // No value of ours has characters that must be escaped.
  template <class Value>
  void labelled(std::string_view name, std::string_view label, std::string_view of, Value value) {
    fmt::format_to(out(), "ckptfs_{}{{{}=\"{}\"}} {}\n", name, label, of, value);
  }
  // `labels`: empty, or 'operation="read",'
  void histogram(std::string_view name, std::string_view labels, const Histogram& histogram) {
    uint64_t so_far = 0;
    for (size_t at = 0; at < Histogram::kBounds; ++at) {
      so_far += histogram.in_class(at);
      fmt::format_to(out(), "ckptfs_{}_bucket{{{}le=\"{}\"}} {}\n", name, labels,
                     static_cast<double>(Histogram::bound(at)) / 1e6, so_far);
    }
    so_far += histogram.in_class(Histogram::kBounds);
    fmt::format_to(out(), "ckptfs_{}_bucket{{{}le=\"+Inf\"}} {}\n", name, labels, so_far);
    const std::string own = labels.empty() ? "" : fmt::format("{{{}}}", labels.substr(0, labels.size() - 1));
    fmt::format_to(out(), "ckptfs_{}_sum{} {}\nckptfs_{}_count{} {}\n", name, own, histogram.seconds(), name, own,
                   so_far);
  }
  std::string take() { return std::move(text_); }

 private:
  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }
  void single(std::string_view name, std::string_view help, std::string_view type, uint64_t value) {
    begin(name, help, type);
    fmt::format_to(out(), "ckptfs_{} {}\n", name, value);
  }

  std::string text_;
};

void add_requests(Metrics& metrics, const Filesystem& fs) {
  const Counters& counters = fs.counters;
  metrics.begin("request_duration_seconds", "Requests of the kernel, until each had its answer.", "histogram");
  for (size_t at = 0; at < Counters::kOperations; ++at) {
    if (value(counters.operations[at]) == 0 || at == static_cast<size_t>(Operation::forget)) continue;
    metrics.histogram("request_duration_seconds", fmt::format("operation=\"{}\",", kOperationNames[at]),
                      counters.latency[at]);
  }
  metrics.begin("request_errors_total", "Requests that failed in a way a person should know of; each is in the log.",
                "counter");
  for (size_t at = 0; at < Counters::kOperations; ++at) {
    metrics.labelled("request_errors_total", "operation", kOperationNames[at], value(counters.failed[at]));
  }
  metrics.begin("write_errors_total",
                "Writes, allocations and write-backs that failed; the first of each file is in the log.", "counter");
  for (size_t at = 0; at < kWriteNames.size(); ++at) {
    metrics.labelled("write_errors_total", "what", kWriteNames[at], value(counters.write_errors[at]));
  }
  metrics.counter("release_errors_total", "Files whose size and blocks could not be read again when they were closed.",
                  fs.tree.release_errors());
  metrics.counter("read_errors_total", "Reads through the daemon that failed.", value(counters.read_errors));
}

void add_data(Metrics& metrics, const Counters& counters) {
  metrics.begin("opens_total", "Opens of files, by the way that their data takes.", "counter");
  metrics.labelled("opens_total", "mode", "passthrough", value(counters.opens_passthrough));
  metrics.labelled("opens_total", "mode", "through_daemon", value(counters.opens_through_daemon));
  metrics.labelled("opens_total", "mode", "direct", value(counters.opens_direct));
  metrics.labelled("opens_total", "mode", "view", value(counters.opens_of_views));
  metrics.counter("read_bytes_total", "Read through the daemon; passthrough reads are the kernel's.",
                  value(counters.bytes_read));
  metrics.counter("written_bytes_total", "Written through the daemon.", value(counters.bytes_written));
  metrics.counter("clones_total", "Ranges shared by copy_file_range.", value(counters.clones));
  metrics.counter("cloned_bytes_total", "Shared by copy_file_range.", value(counters.bytes_cloned));
  metrics.counter("copied_bytes_total", "Copied by copy_file_range, where blocks could not be shared.",
                  value(counters.bytes_copied));
  metrics.counter("adoptions_total", "Files that share blocks of what they would probably hold.",
                  value(counters.adoptions));
  metrics.counter("adopted_bytes_total", "Written to such files, and shared instead.", value(counters.bytes_adopted));
  metrics.counter("wrong_guesses_total", "New files that held something else than was predicted, for the most part.",
                  value(counters.wrong_guesses));
  metrics.begin("fallbacks_total", "What had to be done in a slower way; the first of each kind is in the log.",
                "counter");
  metrics.labelled("fallbacks_total", "what", "adoption", value(counters.adoption_fallbacks));
  metrics.labelled("fallbacks_total", "what", "clone", value(counters.clone_fallbacks));
  metrics.labelled("fallbacks_total", "what", "direct_io", value(counters.direct_fallbacks));
  metrics.labelled("fallbacks_total", "what", "io_uring", value(counters.io_uring_fallbacks));
  metrics.labelled("fallbacks_total", "what", "passthrough", value(counters.passthrough_fallbacks));
  metrics.labelled("fallbacks_total", "what", "view", value(counters.view_fallbacks));
}

void add_stages(Metrics& metrics, const char* name, const char* help, const MovedByRanks& ranks) {
  metrics.begin(name, help, "gauge");
  for (const auto& [stage, seconds] : ranks.times.longest) metrics.labelled(name, "stage", stage, seconds);
}

void add_ranks(Metrics& metrics, const SaveHistory& saves) {
  if (const auto save = saves.last_by_ranks(SaveHistory::Way::saved)) {
    add_stages(metrics, "rank_save_stage_seconds",
               "Of the last step that ranks saved past the mount: the longest of each stage.", *save);
    metrics.gauge("rank_save_slowest", "Of that step: the rank that was durable last.", save->times.slowest);
  }
  if (const auto load = saves.last_by_ranks(SaveHistory::Way::loaded)) {
    add_stages(metrics, "rank_load_stage_seconds",
               "Of the last step that a group of ranks loaded: the longest of each stage.", *load);
    metrics.gauge("rank_load_slowest", "Of that step: the rank that took longest for its own part.",
                  load->times.slowest);
  }
}

void add_steps(Metrics& metrics, const Filesystem& fs) {
  const Counters& counters = fs.counters;
  metrics.begin("save_duration_seconds", "Saves by `ckptfs save` and user.ckptfs.save that took one.", "histogram");
  metrics.histogram("save_duration_seconds", "", counters.save_time);
  metrics.begin("save_errors_total", "Saves that were not taken: refused, since they cannot be, or failed.", "counter");
  metrics.labelled("save_errors_total", "reason", "refused", value(counters.saves_refused));
  metrics.labelled("save_errors_total", "reason", "failed", value(counters.saves_failed));
  add_ranks(metrics, fs.saves);
  metrics.counter("seals_total", "Steps that were sealed.", value(counters.seals));
  const RotationReport rotation = fs.rotation.report();
  metrics.counter("rotation_removed_steps_total", "Steps that rotation removed.", rotation.removed);
  metrics.counter("rotation_set_aside_steps_total", "Incomplete steps that nobody would finish, and that were renamed.",
                  fs.set_aside.count());
  metrics.counter("lossy_resumes_total",
                  "Steps from which a run resumed by DeepSpeed's own load, which begins the optimizer anew.",
                  fs.resumes.count());
  const ThinningReport thinning = fs.rotation.thinning_report();
  metrics.counter("thinned_steps_total", "Steps of which rules kept only the weights.", thinning.thinned);
  metrics.counter("thinned_bytes_total", "Bytes on the disk that this freed.", thinning.freed);
  metrics.counter("rotation_errors_total", "What rotation could not do; each is in the log.",
                  rotation.failures + thinning.failures);
  metrics.gauge("rotation_held_steps", "Steps that no rule keeps, and that stay for what promise 6 protects.",
                rotation.held.size());
  metrics.gauge("rotation_warnings", "Caps that cannot be met, and what cannot be judged.", rotation.warnings.size());
  metrics.gauge("removed_folders_being_emptied", "Removed steps whose space is still being freed.",
                fs.removals.waiting());
}

// A path may have any bytes.
std::string escaped(const std::string& path) {
  std::string text;
  for (const char c : path) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? ' ' : c;
  }
  return text;
}

// One line for each series with a remote.
void add_remotes(Metrics& metrics, const Filesystem& fs) {
  const auto remotes = fs.remotes.reports();
  // `value`: a field of the report, or a function of it.
  const auto add = [&](const char* name, const char* help, const char* type, const auto& value) {
    metrics.begin(name, help, type);
    for (const auto& [series, report] : remotes) {
      metrics.labelled(name, "series", escaped(fs.tree.path_of(series)), std::invoke(value, report));
    }
  };
  using Report = const RemoteReport&;
  add("remote_oldest_unpushed_seconds", "The age of the oldest step that its remote does not have; 0: it has all.",
      "gauge", [](Report one) { return one.oldest.value_or(std::chrono::seconds(0)).count(); });
  add("remote_stalled_seconds", "For so long every request to the remote has failed; 0: they succeed.", "gauge",
      [](Report one) { return one.stalled.count(); });
  add("remote_bytes_per_second", "Sent to the remote, lately.", "gauge", &RemoteReport::bytes_per_second);
  add("remote_sent_bytes_total", "Of files, by pushes that came to their end.", "counter", &RemoteReport::sent);
  add("remote_copied_bytes_total", "That pushes found there already, or had copied there.", "counter",
      &RemoteReport::copied);
  add("remote_committed_steps_total", "Steps that this mount has seen committed.", "counter", &RemoteReport::committed);
  add("remote_puts_total", "Requests that put an object, with all tries.", "counter", &RemoteReport::puts);
  add("remote_gets_total", "Requests that read one.", "counter", &RemoteReport::gets);
  add("remote_lists_total", "Requests for a list.", "counter", &RemoteReport::lists);
  add("remote_retries_total", "Requests that were tried again.", "counter", &RemoteReport::retries);
  add("remote_errors_total", "Pushes that failed; each is in the log.", "counter", &RemoteReport::failures);
  const auto add_of_collector = [&](const char* name, const char* help, const char* type, const auto& value) {
    add(name, help, type, [&](Report one) { return std::invoke(value, one.collection.value_or(CollectionReport())); });
  };
  using Collection = const CollectionReport&;
  add_of_collector("remote_collector_failing_seconds",
                   "For so long the remote's rules cannot be carried out; 0: they are, or another slot does it.",
                   "gauge", [](Collection one) { return one.failing.count(); });
  add_of_collector("remote_collector_runs_total", "Of slot 0, that came to their end.", "counter",
                   &CollectionReport::runs);
  add_of_collector("remote_removed_steps_total", "That the remote's rules have removed there.", "counter",
                   &CollectionReport::removed);
  add_of_collector("remote_deleted_bytes_total", "Of objects that the collector has deleted there.", "counter",
                   &CollectionReport::deleted_bytes);
  add_of_collector("remote_waiting_bytes",
                   "Of what was removed or given up there, and is deleted when that is a day old.", "gauge",
                   &CollectionReport::waiting_bytes);
  add_of_collector("remote_collector_warnings", "Of its last run: what is missing there, or does not belong there.",
                   "gauge", [](Collection one) { return one.warnings.size(); });
}

void add_store(Metrics& metrics, const Filesystem& fs) {
  const meta::SpaceReport space = fs.store.space();
  metrics.gauge("store_size_bytes", "Of the file system under the store.", space.total);
  metrics.gauge("store_free_bytes", "What users may fill.", space.free);
  metrics.gauge("store_reserve_bytes", "Kept back so that removals always work.", space.reserve);
  metrics.gauge("store_owed_bytes", "That overwriting all live swap files would need.", space.cow_reserve);
  metrics.gauge("store_short_of_space", "1: swap files are written through the daemon.",
                fs.tree.short_of_space() ? 1 : 0);
  const meta::MaintenanceReport care = fs.maintenance.report();
  metrics.counter("digested_files_total", "Files whose digests were taken.", care.digested_files);
  metrics.counter("digested_bytes_total", "Read for digests.", care.digested_bytes);
  metrics.gauge("files_waiting_for_digests", "Files without digests yet.", care.waiting_files);
  metrics.counter("deduplicated_bytes_total", "Had twice, and shared since.", care.shared_bytes);
  metrics.counter("scrubbed_bytes_total", "Read against their digests.", care.scrubbed_bytes);
  metrics.counter("care_errors_total", "What digests, dedup and scrub could not do; each is in the log.",
                  care.failures);
  const meta::RecoveryReport& recovery = fs.store.recovery();
  metrics.begin("damaged_files", "Files whose blob is missing or short (recovery), or no longer as written (scrub).",
                "gauge");
  metrics.labelled("damaged_files", "found_by", "recovery", fs.tree.damaged_files().size());
  metrics.labelled("damaged_files", "found_by", "scrub", care.damaged.size());
  metrics.gauge("suspect_files", "Files whose write-back failed, and that were not written anew.",
                fs.tree.write_back().suspects());
  metrics.gauge("raised_references", "Blobs whose count of files the last start corrected.",
                recovery.raised_references);
  metrics.gauge("orphan_blobs", "Blobs without a name, which `ckptfs fsck` lists.", recovery.orphan_blobs);
}

}  // namespace

std::string metrics_of(const Filesystem& fs) {
  Metrics metrics;
  metrics.begin("build_info", "Always 1; the version is in the label.", "gauge");
  metrics.labelled("build_info", "version", CKPTFS_VERSION, 1);
  metrics.gauge("passthrough_active", "1: files are read and written past the daemon.", fs.modes.passthrough ? 1 : 0);
  metrics.gauge("open_files", "Files that somebody has open.", fs.files.open_count());
  metrics.gauge("remembered_inodes", "Inodes that the kernel remembers.", fs.files.remembered_count());
  add_requests(metrics, fs);
  add_data(metrics, fs.counters);
  add_steps(metrics, fs);
  add_remotes(metrics, fs);
  add_store(metrics, fs);
  return metrics.take();
}

}  // namespace ckptfs::fs
