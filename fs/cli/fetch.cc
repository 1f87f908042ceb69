// ckptfs fetch: a committed step of a remote becomes a step of a series. A client of the mount: it writes the files
// into a folder beside the steps (meta/steps/partial.h), which then becomes the step. If it is ended before that, the
// folder stays, and the next call goes on with it: its name is made from the commit and the slot.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "fs/cli/client.h"
#include "fs/cli/commands.h"
#include "fs/cli/format.h"
#include "fs/cli/remote_options.h"
#include "fs/cli/remote_reading.h"
#include "fs/cli/system.h"
#include "fs/remote/fetched_step.h"
#include "io/digest.h"
#include "io/fd.h"
#include "io/host.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/names.h"
#include "meta/remote/address.h"
#include "meta/remote/remote_facts.h"
#include "meta/remote/remote_fetch.h"

namespace ckptfs::fs::cli {
namespace {

using meta::remote::CommittedStep;
using meta::remote::FetchReport;
using meta::remote::RemoteStep;
using meta::remote::StepAddress;
using nlohmann::json;

struct FetchArguments {
  RemoteOptions options;  // its url: TAG, or URL/TAG
  std::string series;
  std::optional<uint32_t> slot;
};

struct Series {
  Target target;
  std::string path;  // absolute

  // A path as the daemon tells it, of what lies in the series.
  std::string child(const std::string& inside) const { return path + "/" + inside.substr(inside.rfind('/') + 1); }
};

Result<Series> find_series(const std::string& path) {
  TRY_ASSIGN(Target target, find_target(path));
  TRY_ASSIGN(const std::string absolute, absolute_path(path));
  struct stat found {};
  if (::stat(absolute.c_str(), &found) != 0) return last_error(absolute);
  return Series{std::move(target), absolute};
}

// Options that were given go before what the mount knows.
void fill_in(io::S3Settings& given, const json& known) {
  const auto fill = [&known](std::string& value, const char* key) {
    if (value.empty()) value = known.value(key, "");
  };
  fill(given.endpoint, "endpoint");
  fill(given.region, "region");
  fill(given.profile, "profile");
  fill(given.authorities, "authorities");
  given.path_style = given.path_style || known.value("path_style", false);
}

// The step of the series' own remote.
Result<StepAddress> address_in_own_remote(const Series& series, const std::string& tag, io::S3Settings& s3) {
  const auto status = ask_daemon(series.target.mount, "remote_status", {{"path", series.target.path}});
  if (!status && status.error().errno_value() != ENOENT) return status.error();
  for (const json& remote : status ? status.value().value("remotes", json::array()) : json::array()) {
    if (remote.value("series", "") != series.target.path) continue;
    if (!io::is_trusted(series.target.mount, ::geteuid())) {
      return Error(EPERM, series.path +
                              ": another user has mounted it, and your credentials would go where they say: " +
                              "name the step as URL/TAG");
    }
    fill_in(s3, remote);
    return StepAddress{remote.value("url", ""), tag, std::nullopt};
  }
  return Error(EINVAL, series.path +
                           ": no series with a remote: name the step as URL/TAG, or give the series a remote " +
                           "(ckptfs remote add)");
}

struct Source {
  Remote remote;
  CommittedStep step;
  std::string id;                // of the remote
  std::optional<uint32_t> slot;  // that the address names
};

Result<Source> find_source(const Series& series, RemoteOptions options) {
  StepAddress address;
  if (meta::remote::is_remote_address(options.url)) {
    TRY_ASSIGN(address, meta::remote::split_step(options.url));
  } else {
    TRY_ASSIGN(address, address_in_own_remote(series, options.url, options.s3));
  }
  TRY_ASSIGN(Remote remote, open_remote(address.url, options));
  TRY_ASSIGN(CommittedStep step, find_standing(remote, address.step));
  TRY_ASSIGN(const auto facts, meta::remote::read_facts(*remote.store, limits_of(remote)));
  return Source{std::move(remote), std::move(step), facts.id, address.slot};
}

// The same for each call, so that it goes on where the last one ended.
std::string attempt_of(const Source& source, std::optional<uint32_t> slot) {
  const std::string text = source.id + "/" + source.step.decision.text() + "/" + (slot ? std::to_string(*slot) : "all");
  return meta::kFetchAttempt + io::hex_of(io::digest_of(std::as_bytes(std::span(text)))).substr(0, 16);
}

struct Fetched {
  std::string step;  // its path
  bool was_there = false;
  FetchReport report;
};

// There is something of that name. If it is the same, all is well.
Result<Fetched> compare(const std::string& path, const RemoteStep& step, std::optional<uint32_t> slot,
                        const Remote& remote) {
  Progress line("comparing what is there already");
  TRY_ASSIGN(const std::string other, meta::remote::find_difference(step, slot, path, settings_of(remote, line)));
  if (other.empty()) return Fetched{path, true, {}};
  return Error(EEXIST, path + " is there already, and differs at " + other + ": remove or rename it");
}

// Locks the folder for as long as the process lives.
Result<io::Fd> lock_folder(const std::string& path) {
  TRY_ASSIGN(io::Fd folder, io::open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) return folder;
  if (errno == EWOULDBLOCK) return Error(EBUSY, path + ": somebody is fetching it now");
  return last_error(path);
}

Result<Fetched> write_and_publish(const Series& series, const Source& source, const RemoteStep& step,
                                  std::optional<uint32_t> slot, const json& begun) {
  const std::string inside = begun.value("path", ""), folder = series.child(inside);
  std::vector<std::string> lenders;
  for (const json& lender : begun.value("lenders", json::array())) {
    lenders.push_back(series.child(lender.get<std::string>()));
  }
  TRY_ASSIGN(const io::Fd lock, lock_folder(folder));
  TRY_ASSIGN(const struct stat locked, io::stat_fd(lock.get()));
  if (locked.st_ino != begun.value("inode", uint64_t{0})) return Error(ENOENT, folder + ": it was removed meanwhile");
  Progress line("fetching");
  auto written = meta::remote::fetch_step(step, slot, folder, lenders, settings_of(source.remote, line));
  if (!written) {
    return Error(written.error().errno_value(), written.error().message() + ". What came lies in " + folder +
                                                    ", and the same command goes on from there");
  }
  const FetchedStep fetched{source.id, source.step.decision.tag, source.step.name(), source.step.decision.text(),
                            slot,      written.value().saved};
  const auto& own = written.value().own_folder;
  const json own_folder = {
      {"uid", own.uid}, {"gid", own.gid}, {"mode", own.mode}, {"mtime", {own.mtime.tv_sec, own.mtime.tv_nsec}}};
  TRY_ASSIGN(
      const json published,
      ask_daemon(series.target.mount, "fetch_commit",
                 {{"path", inside}, {"inode", begun["inode"]}, {"folder", own_folder}, {"fetched", to_json(fetched)}}));
  return Fetched{series.child(published.value("step", "")), false, written.value()};
}

Result<Fetched> fetch(const Series& series, const Source& source, std::optional<uint32_t> slot) {
  TRY_ASSIGN(const RemoteStep step,
             RemoteStep::open(*source.remote.store, source.step, io::temporary_folder(), limits_of(source.remote)));
  TRY(step.files_of(slot));
  const std::string& tag = source.step.decision.tag;
  const auto begun = ask_daemon(series.target.mount, "fetch_begin",
                                {{"series", series.target.path}, {"tag", tag}, {"attempt", attempt_of(source, slot)}});
  if (begun) {
    auto fetched = write_and_publish(series, source, step, slot, begun.value());
    const bool is_gone = !fetched && fetched.error().errno_value() == ENOENT;
    // Another fetch may have published it this moment.
    const std::string there = series.path + "/" + tag;
    return is_gone && ::access(there.c_str(), F_OK) == 0 ? compare(there, step, slot, source.remote) : fetched;
  }
  if (begun.error().errno_value() != EEXIST) return begun.error();
  return compare(series.path + "/" + tag, step, slot, source.remote);
}

void print(const Fetched& fetched, const Source& source) {
  const std::string path = printable(fetched.step);
  if (fetched.was_there) {
    std::printf("%s is there already, and is the same\n", path.c_str());
    return;
  }
  const FetchReport& report = fetched.report;
  std::printf("%s: %s fetched, %s shared with other steps, %s there already from an earlier fetch\n", path.c_str(),
              human_size(report.fetched).c_str(), human_size(report.shared).c_str(), human_size(report.found).c_str());
  print_cost(source.remote.store->counts());
}

// DeepSpeed takes the step that `latest` beside it names. If there is no such file it starts from the beginning,
// without a word.
void print_how_to_resume(const std::filesystem::path& step) {
  std::error_code failed;
  bool is_deepspeeds = false;
  for (std::filesystem::directory_iterator at(step, failed), end; !failed && at != end; at.increment(failed)) {
    is_deepspeeds = is_deepspeeds || meta::formats::parse_states_name(at->path().filename().string());
  }
  const std::filesystem::path latest = step.parent_path() / "latest";
  if (!is_deepspeeds || std::filesystem::exists(latest, failed)) return;
  std::printf("DeepSpeed resumes from the step that %s names:\n    printf %%s %s >%s\n", printable(latest).c_str(),
              printable(step.filename()).c_str(), printable(latest).c_str());
}

Result<int> run(const FetchArguments& arguments) {
  end_in_order();
  TRY_ASSIGN(const Series series, find_series(arguments.series));
  TRY_ASSIGN(const Source source, find_source(series, arguments.options));
  TRY_ASSIGN(const Fetched fetched, fetch(series, source, arguments.slot ? arguments.slot : source.slot));
  const json answer = {{"step", fetched.step},
                       {"name", source.step.name()},
                       {"was_there", fetched.was_there},
                       {"fetched", fetched.report.fetched},
                       {"shared", fetched.report.shared},
                       {"found", fetched.report.found},
                       {"requests", cost_of(source.remote.store->counts())}};
  return print_answer(arguments.options.as_json, answer, [&] {
    print(fetched, source);
    print_how_to_resume(fetched.step);
  });
}

}  // namespace

void add_fetch(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<FetchArguments>();
  CLI::App* command = app.add_subcommand("fetch", "Make a committed step of a remote a step of a series again");
  add_remote_options(*command, arguments->options, "TAG",
                     "A step of the series' own remote, or URL/TAG: of any remote");
  command->add_option("SERIES", arguments->series, "The series of a mount that gets the step")->required();
  command->add_option("--slot", arguments->slot, "Only what this slot has pushed (default: what all have)");
  command->footer(
      "Each chunk is compared with its digest. The step appears when all of it is there and durable, or not at all.\n"
      "What an interrupted fetch has left, and what other steps have already, is not fetched. TAG~2 becomes the step\n"
      "TAG. If that is there and is the same, nothing is done.\n"
      "Example:\n  ckptfs fetch global_step100 /ckpt/steps\n"
      "  ckptfs fetch --slot 0 file:///lustre/run7/global_step100 /ckpt/steps");
  command->callback([arguments, &chosen] {
    chosen = [arguments] {
      const auto code = run(*arguments);
      return code ? code.value() : fail_remote(arguments->options.url, code.error());
    };
  });
}

}  // namespace ckptfs::fs::cli
