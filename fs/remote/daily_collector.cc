#include "fs/remote/daily_collector.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "io/host.h"
#include "io/log.h"
#include "meta/remote/remote_facts.h"

namespace ckptfs::fs {
namespace {

using meta::remote::a_day;
using meta::remote::CollectorReport;

constexpr std::chrono::minutes kFirstRun{5};
constexpr std::chrono::minutes kCollectorTime{2};  // for a request
constexpr unsigned kRequestsAtOnce = 4;

// The store's clock may be a little slower than ours: what was removed at the last run is a day old at this one.
std::chrono::seconds between_runs() { return a_day() + std::max(a_day() / 100, std::chrono::seconds(1)); }
std::chrono::seconds after_failure() { return std::max(a_day() / 24, std::chrono::seconds(1)); }

}  // namespace

DailyCollector::DailyCollector(const RemoteSettings& settings, std::unique_ptr<io::ObjectStore> remote)
    : url_(settings.url), remote_(std::move(remote)) {}

void DailyCollector::start() {
  stopping_ = false;
  thread_.start([this] { run(); }, io::BackgroundThread::Priority::low);
}

void DailyCollector::stop() {
  stopping_ = true;
  thread_.stop();
}

void DailyCollector::run() {
  auto pause = std::min<std::chrono::seconds>(kFirstRun, a_day());
  while (thread_.wait_for(pause)) {
    const auto done = collect();
    if (!done && stopping_) return;
    if (done) {
      note(done.value());
    } else {
      note_failure(done.error());
    }
    pause = done ? between_runs() : after_failure();
  }
}

Result<CollectorReport> DailyCollector::collect() {
  const auto limits = io::RequestLimits::within(kCollectorTime, &stopping_);
  TRY(meta::remote::read_facts(*remote_, limits));
  meta::remote::CollectorSettings settings;
  settings.host = io::host_name();
  settings.time = kCollectorTime;
  settings.parallel = kRequestsAtOnce;
  settings.stop = &stopping_;
  return meta::remote::collect(*remote_, settings);
}

void DailyCollector::note(const CollectorReport& done) {
  for (const auto& one : done.removed) log::info("{}/{}: removed: {}", url_, one.step.name(), one.why);
  for (const auto& push : done.ended) {
    log::info("{}: the push {} was ended, since nothing has come of it for days", url_, push.text());
  }
  for (const auto& decision : done.committed)
    log::info("{}/{}: all its parts are there: committed", url_, decision.tag);
  log::info("{}: the collector deleted {} objects ({} bytes), {} ({} bytes) wait", url_, done.deleted.objects,
            done.deleted.bytes, done.waiting.objects, done.waiting.bytes);
  const io::MutexLock lock(mutex_);
  for (const std::string& warning : done.warnings) {
    if (std::ranges::find(report_.warnings, warning) == report_.warnings.end()) log::warn("{}", warning);
  }
  ++report_.runs;
  report_.trouble.clear();
  failing_since_.reset();
  report_.last = std::chrono::system_clock::now();
  report_.removed += done.removed.size();
  report_.ended += done.ended.size();
  report_.deleted += done.deleted.objects;
  report_.deleted_bytes += done.deleted.bytes;
  report_.waiting = done.waiting.objects;
  report_.waiting_bytes = done.waiting.bytes;
  report_.warnings = done.warnings;
}

void DailyCollector::note_failure(const Error& error) {
  const io::MutexLock lock(mutex_);
  if (report_.trouble != error.message()) {
    log::warn("{}: its rules are not carried out, and nothing is deleted there: {}", url_, error.message());
  }
  ++report_.failures;
  report_.trouble = error.message();
  if (!failing_since_) failing_since_ = Clock::now();
}

CollectionReport DailyCollector::report() const {
  CollectionReport report;
  {
    const io::MutexLock lock(mutex_);
    report = report_;
    if (failing_since_) {
      report.failing = std::max(std::chrono::seconds(1),
                                std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - *failing_since_));
    }
  }
  const io::RequestCounts& counts = remote_->counts();
  report.puts = counts.puts;
  report.gets = counts.gets;
  report.lists = counts.lists;
  report.removes = counts.removes;
  return report;
}

}  // namespace ckptfs::fs
