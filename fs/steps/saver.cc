#include "fs/steps/saver.h"

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "io/log.h"
#include "meta/steps/seal.h"
#include "meta/tree/tree.h"

namespace ckptfs::fs {

Result<meta::SaveResult> Saver::save(meta::InodeNumber series, const std::string& tag, const Peer& peer) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = meta::save(
      store_, {series, tag, {peer.credentials.uid, peer.credentials.gid, peer.pid}, peer.credentials.groups});
  const auto took = std::chrono::steady_clock::now() - begin;
  const std::string step = store_.tree().path_of(series) + "/" + tag;
  TakenSave taken{step, false, meta::wall_time(meta::now()), took, 0, {}};
  if (!result) {
    taken.error = result.error().message();
    history_.add(std::move(taken));
    add(meta::is_refusal(result.error()) ? counters_.saves_refused : counters_.saves_failed);
    last_errors_.remember(series, peer.credentials.uid, result.error());
    log::warn("save {} failed: {}", step, result.error().message());
    return result;
  }
  add(counters_.saves);
  last_errors_.remember(series, peer.credentials.uid, success());
  saved_();
  const meta::SaveResult& saved = result.value();
  if (!saved.already_saved) {
    counters_.save_time.add(took);
    taken.bytes = saved.bytes;
    history_.add(std::move(taken));
  }
  log::info("save {}: {} files, {} cloned, {} bytes, {:.3f} s{}", step, saved.files, saved.cloned, saved.bytes,
            saved.seconds, saved.already_saved ? ", was saved already" : "");
  for (const std::string& warning : saved.warnings) log::warn("save {}: {}", step, warning);
  notifications_.attributes_changed(series);
  if (saved.step != 0) notifications_.attributes_changed(saved.step);
  return result;
}

Result<> Saver::seal(meta::InodeNumber step) {
  // close() returns before the kernel's RELEASE reaches the daemon. So wait for files that were closed a moment ago.
  constexpr auto kWriterPatience = std::chrono::milliseconds(200);
  const auto until = std::chrono::steady_clock::now() + kWriterPatience;
  Result<> result = meta::seal(store_, step);
  while (!result && result.error().errno_value() == EBUSY && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    result = meta::seal(store_, step);
  }
  if (result) {
    add(counters_.seals);
    notifications_.attributes_changed(step);
  }
  return result;
}

}  // namespace ckptfs::fs
