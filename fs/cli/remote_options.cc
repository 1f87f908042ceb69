#include "fs/cli/remote_options.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>

#include "fs/cli/system.h"
#include "io/duration.h"
#include "io/log.h"
#include "io/objects/open_object_store.h"
#include "meta/remote/address.h"

namespace ckptfs::fs::cli {
namespace {

// Words that are put after those of the error; empty if they say already what to do.
std::string way_out(const Error& error) {
  const std::string said = error.message();
  const auto says = [&](const char* words) { return said.find(words) != std::string::npos; };
  switch (error.errno_value()) {
    case EACCES:
      if (!says(" answers ")) return "";  // no server's word: it tells which credentials are missing
      if (says("NoSuchBucket")) return "Check the bucket's name and --endpoint, or make the bucket; ckptfs makes none";
      return "Check the bucket's name, the credentials (AWS_ACCESS_KEY_ID, --profile) and what they may do there";
    case EPROTO:
      if (says("certificate")) return "Give --ca-file if the server has an authority of its own";
      return says(" answers 501") ? "It lacks what a remote needs (If-None-Match): use another server" : "";
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ECONNREFUSED:
    case ECONNRESET:
    case ETIMEDOUT:
      return "Check the address (--endpoint), and whether the server is up";
    default:
      return "";
  }
}

// Standard output is for the answer alone: `tag=$(ckptfs remote latest URL)`.
void log_to_stderr(log::Level level, const std::string& line) {
  if (level == log::Level::warning || level == log::Level::error) std::fprintf(stderr, "ckptfs: %s\n", line.c_str());
}

}  // namespace

void add_s3_options(CLI::App& command, io::S3Settings& settings) {
  command.add_option("--endpoint", settings.endpoint, "S3: the server, https://HOST:PORT (default: Amazon's)");
  command.add_option("--region", settings.region, "S3: the region (default: what the AWS tools take)");
  command.add_option("--profile", settings.profile, "S3: the profile of ~/.aws that has the credentials");
  command.add_option("--ca-file", settings.authorities, "S3: the certificates to trust (default: the system's)");
  command.add_flag("--path-style", settings.path_style,
                   "S3: put the bucket into the path, not into the host's name; always so with --endpoint");
}

void add_request_options(CLI::App& command, RemoteOptions& options) {
  command.add_flag("--json", options.as_json, "Print as JSON");
  command.add_option("--timeout", options.timeout, "Give up a request after this time")->capture_default_str();
  add_s3_options(command, options.s3);
}

void add_remote_options(CLI::App& command, RemoteOptions& options, const std::string& argument,
                        const std::string& about_argument) {
  command.add_option(argument, options.url, about_argument)->required();
  add_request_options(command, options);
}

Result<Remote> open_remote(const std::string& url, const RemoteOptions& options) {
  log::send_to(log_to_stderr);
  const auto time = io::parse_duration(options.timeout);
  if (!time) return Error(EINVAL, "--timeout: " + time.error().message());
  if (time.value().count() == 0) return Error(EINVAL, "--timeout: it must be at least 1s");
  TRY(check_remote(url, options.s3));
  TRY_ASSIGN(auto store, io::open_object_store(url, options.s3));
  return Remote{std::move(store), time.value()};
}

Result<> check_remote(const std::string& url, const io::S3Settings& s3) {
  TRY(refuse_secrets(url, "the address of the remote"));
  TRY(refuse_secrets(s3.endpoint, "--endpoint"));
  TRY(meta::remote::check_folder_of(url));
  TRY(io::open_object_store(url, s3));
  return success();
}

Error with_way_out(const Error& error) {
  const std::string then = way_out(error);
  return then.empty() ? error : Error(error.errno_value(), error.message() + ". " + then);
}

int fail_remote(const std::string& url, const Error& error) {
  const Error told = with_way_out(error);
  const int code = meta::remote::has_secret(url) ? fail(told) : fail(url, told);
  return error.errno_value() == EINVAL ? kUsage : code;
}

}  // namespace ckptfs::fs::cli
