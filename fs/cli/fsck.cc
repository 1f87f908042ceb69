// ckptfs fsck: checks a store that is not mounted.
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/progress.h"
#include "fs/cli/system.h"
#include "io/image.h"
#include "io/mount_table.h"
#include "meta/care/fsck.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct FsckArguments {
  std::string store;
  bool remove_orphans = false;
  bool as_json = false;
};

// The image under a store, mounted for the check. It is unmounted at the end if it was not mounted before.
class ImageForCheck {
 public:
  static Result<ImageForCheck> open(const std::string& store) {
    ImageForCheck result;
    result.folder_ = store;
    if (!io::has_image(store)) return result;
    TRY_ASSIGN(const auto mounts, io::mount_table());
    TRY_ASSIGN(auto image, io::find_image(store));
    result.folder_ = image.folder;
    if (!mounted_at(mounts, image.folder)) result.image_ = std::move(image);
    return result;
  }
  const std::string& folder() const { return folder_; }
  Result<> close() { return image_ ? io::unmount_image(*image_) : Result<>(success()); }

 private:
  std::string folder_;
  std::optional<io::MountedImage> image_;
};

struct FsckOutcome {
  meta::FsckReport report;
  uint64_t removed_orphans = 0;
};

Result<FsckOutcome> check(const std::string& folder, bool remove_orphans) {
  FsckOutcome outcome;
  TRY_ASSIGN(outcome.report, meta::fsck(folder));
  // A store with problems is left exactly as it is.
  if (remove_orphans && outcome.report.problems.empty()) {
    TRY_ASSIGN(outcome.removed_orphans, meta::remove_orphans(folder));
  }
  return outcome;
}

void print_report(const FsckArguments& arguments, const FsckOutcome& outcome) {
  const meta::FsckReport& report = outcome.report;
  for (const std::string& problem : report.problems) std::printf("%s\n", printable(problem).c_str());
  const bool removed = arguments.remove_orphans && report.problems.empty();
  for (const meta::Orphan& orphan : report.orphans) {
    std::printf("%s: blobs/%s, %s, written %s ago, has no name\n", removed ? "removed" : "note", orphan.name.c_str(),
                human_size(orphan.bytes).c_str(), human_age(std::time(nullptr) - orphan.mtime.tv_sec).c_str());
  }
  std::printf("%s: %s, %s, %s; last unmount %s; %s\n", arguments.store.c_str(), counted(report.inodes, "inode").c_str(),
              counted(report.blobs, "blob").c_str(), human_size(report.bytes).c_str(),
              report.clean_unmount ? "clean" : "not clean",
              report.problems.empty() ? "no problems" : counted(report.problems.size(), "problem").c_str());
  if (removed) {
    std::printf("removed %s\n", counted(outcome.removed_orphans, "orphan").c_str());
  } else if (arguments.remove_orphans) {
    std::printf("no orphan was removed: the store has problems\n");
  } else if (!report.orphans.empty()) {
    std::printf("orphans are kept; remove them with: ckptfs fsck --remove-orphans %s\n", arguments.store.c_str());
  }
}

json to_json(const FsckOutcome& outcome) {
  const meta::FsckReport& report = outcome.report;
  json orphans = json::array();
  for (const meta::Orphan& orphan : report.orphans) orphans.push_back({{"name", orphan.name}, {"bytes", orphan.bytes}});
  return {{"problems", report.problems},
          {"orphans", orphans},
          {"inodes", report.inodes},
          {"blobs", report.blobs},
          {"bytes", report.bytes},
          {"clean_unmount", report.clean_unmount},
          {"removed_orphans", outcome.removed_orphans}};
}

int run(const FsckArguments& arguments) {
  auto store = absolute_path(arguments.store);
  if (!store) return fail(arguments.store, store.error());
  if (access(store.value().c_str(), F_OK) != 0) return fail(last_error(store.value() + ": there is no store"));
  auto image = ImageForCheck::open(store.value());
  if (!image) return fail(store.value(), image.error());
  const auto outcome = [&] {
    const Waiting waiting("checking " + store.value());
    return check(image.value().folder(), arguments.remove_orphans);
  }();
  const auto closed = image.value().close();
  if (!outcome) return fail(store.value(), outcome.error());
  print_answer(arguments.as_json, to_json(outcome.value()), [&] { print_report(arguments, outcome.value()); });
  if (!closed) return fail(store.value(), closed.error());
  return outcome.value().report.problems.empty() ? kSuccess : kDamaged;
}

}  // namespace

void add_fsck(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<FsckArguments>();
  CLI::App* command = app.add_subcommand("fsck", "Check a store that is not mounted");
  command->add_option("STORE", arguments->store, "The store (with its image, if it has one)")->required();
  command->add_flag("--remove-orphans", arguments->remove_orphans, "Delete blobs that nothing names");
  command->add_flag("--json", arguments->as_json, "Print as JSON");
  command->footer(
      "Recounts every reference from the tree and reports each difference; changes nothing unless told to.\n"
      "Exits with 3 if there are problems; orphans are notes.\n"
      "Example:\n  ckptfs umount /ckpt && ckptfs fsck /data/store");
  command->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace ckptfs::fs::cli
