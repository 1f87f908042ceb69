#include "fs/control/status.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "fs/control/remote_commands.h"

namespace ckptfs::fs {

using nlohmann::json;

namespace {

constexpr uint64_t kFewInodes = 4096;
constexpr uint64_t kFewFree = 20;  // less than one part in so many, as in docs/alerts.yml

json counters_of(const Counters& counters) {
  json operations = json::object();
  for (size_t i = 0; i < kOperationNames.size(); ++i) {
    if (const uint64_t count = value(counters.operations[i]); count != 0) operations[kOperationNames[i]] = count;
  }
  return {{"operations", std::move(operations)},
          {"opens_passthrough", value(counters.opens_passthrough)},
          {"opens_through_daemon", value(counters.opens_through_daemon)},
          {"opens_direct", value(counters.opens_direct)},
          {"opens_of_views", value(counters.opens_of_views)},
          {"opens_of_shared_views", value(counters.opens_of_shared_views)},
          {"bytes_read", value(counters.bytes_read)},
          {"bytes_written", value(counters.bytes_written)},
          {"clones", value(counters.clones)},
          {"bytes_cloned", value(counters.bytes_cloned)},
          {"bytes_copied", value(counters.bytes_copied)},
          {"adoptions", value(counters.adoptions)},
          {"bytes_adopted", value(counters.bytes_adopted)},
          {"wrong_guesses", value(counters.wrong_guesses)},
          {"adoption_fallbacks", value(counters.adoption_fallbacks)},
          {"direct_fallbacks", value(counters.direct_fallbacks)},
          {"io_uring_fallbacks", value(counters.io_uring_fallbacks)},
          {"passthrough_fallbacks", value(counters.passthrough_fallbacks)},
          {"view_fallbacks", value(counters.view_fallbacks)},
          {"clone_fallbacks", value(counters.clone_fallbacks)},
          {"write_errors", counters.all_write_errors()},
          {"read_errors", value(counters.read_errors)},
          {"saves", value(counters.saves)},
          {"saves_refused", value(counters.saves_refused)},
          {"saves_failed", value(counters.saves_failed)},
          {"save_seconds", counters.save_time.seconds()},
          {"seals", value(counters.seals)},
          {"notifications", value(counters.notifications)}};
}

json space_of(const meta::SpaceReport& space) {
  return {{"total", space.total},
          {"free", space.free},
          {"raw_free", space.raw_free},
          {"reserve", space.reserve},
          {"ballast", space.ballast},
          {"owed", space.cow_reserve},
          {"inodes_free", space.inodes_free}};
}

json recovery_of(const meta::RecoveryReport& recovery, const meta::Tree& tree) {
  return {{"clean", recovery.clean},
          {"inodes", recovery.inodes},
          {"blobs", recovery.blobs},
          {"removed_blobs", recovery.removed_blobs},
          {"orphan_blobs", recovery.orphan_blobs},
          {"raised_references", recovery.raised_references},
          {"inspected", tree.is_inspected()},
          {"damaged", tree.damaged_files()}};
}

json care_of(const meta::MaintenanceReport& care) {
  return {{"digested_files", care.digested_files},
          {"bytes_digested", care.digested_bytes},
          {"waiting_files", care.waiting_files},
          {"bytes_shared", care.shared_bytes},
          {"bytes_scrubbed", care.scrubbed_bytes},
          {"failures", care.failures},
          {"damaged", care.damaged},
          {"identical", care.identical}};
}

json rotation_of(const Filesystem& fs) {
  const RotationReport rotation = fs.rotation.report();
  const ThinningReport thinning = fs.rotation.thinning_report();
  return {{"removed", rotation.removed},
          {"set_aside", fs.set_aside.count()},
          {"thinned", thinning.thinned},
          {"freed_by_thinning", thinning.freed},
          {"rounds", rotation.rounds},
          {"being_emptied", fs.removals.waiting()},
          {"failures", rotation.failures + thinning.failures},
          {"held", rotation.held}};
}

json warnings_of(const Filesystem& fs) {
  json warnings = json::array();
  const meta::RecoveryReport& recovery = fs.store.recovery();
  if (const size_t damaged = fs.tree.damaged_files().size(); damaged != 0) {
    warnings.push_back(std::to_string(damaged) + " files are damaged: opening them is EIO");
  }
  if (recovery.older_index) {
    warnings.push_back("the index is older than blobs/: a copy of meta/ was put back; the files are those of the copy");
  }
  for (const auto& [blob, suspect] : fs.tree.write_back().suspect_blobs()) {
    warnings.push_back(fs.tree.path_of(suspect.file) +
                       ": what was written to it did not reach the disk: write it anew, or `ckptfs verify --accept`");
  }
  if (recovery.raised_references != 0) {
    warnings.push_back("the index counted too few files for " + std::to_string(recovery.raised_references) +
                       " blobs: corrected, and nothing is lost; please report it");
  }
  if (recovery.orphan_blobs != 0) {
    warnings.push_back(std::to_string(recovery.orphan_blobs) + " blobs have no name; `ckptfs fsck` lists them");
  }
  const meta::SpaceReport space = fs.store.space();
  if (space.inodes != 0 && space.inodes_free < kFewInodes) {
    warnings.push_back("the store has " + std::to_string(space.inodes_free) +
                       " inodes left for new files: remove files or steps");
  }
  if (fs.tree.short_of_space()) {
    warnings.push_back("space is short: swap files are written through the daemon; remove steps");
  } else if (space.free < space.total / kFewFree) {
    warnings.push_back("less than a twentieth of the store is free: remove steps");
  }
  const meta::MaintenanceReport care = fs.maintenance.report();
  if (!care.damaged.empty()) {
    warnings.push_back(std::to_string(care.damaged.size()) +
                       " files no longer hold what was written: `ckptfs verify` names them");
  }
  for (const std::string& step : care.identical) {
    warnings.push_back(step + ": its tensors are, bit for bit, those of the step before");
  }
  for (const std::string& step : fs.resumes.lossy()) {
    warnings.push_back(step +
                       ": a run has resumed from it by DeepSpeed's own load_checkpoint, which begins the optimizer "
                       "anew: start it again by `python -m ckptfs.patch`");
  }
  for (const std::string& cap : fs.rotation.report().warnings) warnings.push_back(cap);
  for (const auto& [series, remote] : fs.remotes.reports()) {
    if (!remote.trouble.empty()) {
      warnings.push_back(fs.tree.path_of(series) + ": nothing is pushed to " + remote.settings.url + ": " +
                         remote.trouble);
    }
    if (remote.collection && !remote.collection->trouble.empty()) {
      warnings.push_back(fs.tree.path_of(series) + ": the rules of " + remote.settings.url +
                         " are not carried out: " + remote.collection->trouble);
    }
  }
  if (const uint64_t errors = fs.counters.all_write_errors(); errors != 0) {
    warnings.push_back(std::to_string(errors) +
                       " writes failed: see the log, and user.ckptfs.write_error of the files");
  }
  if (!fs.modes.passthrough && fs.options.passthrough == PassthroughOption::automatic) {
    warnings.push_back("no passthrough: " + fs.modes.reason);
  }
  return warnings;
}

}  // namespace

json status_of(const Filesystem& fs) {
  const io::DirectAlignment& alignment = fs.modes.alignment;
  return {{"mountpoint", fs.options.mountpoint},
          {"store", fs.options.store_name.empty() ? fs.options.store : fs.options.store_name},
          {"mount_id", fs.store.id()},
          {"pid", ::getpid()},
          {"version", CKPTFS_VERSION},
          {"http", fs.http_address},
          {"passthrough", {{"active", fs.modes.passthrough}, {"reason", fs.modes.reason}}},
          {"odirect", fs.modes.odirect == OdirectOption::safe ? "safe" : "raw"},
          {"alignment", {{"memory", alignment.memory}, {"offset", alignment.offset}, {"harmful", alignment.harmful()}}},
          {"space", space_of(fs.store.space())},
          {"recovery", recovery_of(fs.store.recovery(), fs.tree)},
          {"counters", counters_of(fs.counters)},
          {"care", care_of(fs.maintenance.report())},
          {"rotation", rotation_of(fs)},
          {"remotes", remotes_of(fs)},
          {"open_files", fs.files.open_count()},
          {"remembered_inodes", fs.files.remembered_count()},
          {"warnings", warnings_of(fs)}};
}

}  // namespace ckptfs::fs
