// What the commands about a remote share: its address, the options of S3, the time limit, and errors that say what to
// do. No option takes a secret: who runs `ps` would see it.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "fs/cli/commands.h"
#include "io/objects/object_store.h"
#include "io/objects/s3_settings.h"
#include "io/result.h"
#include "meta/remote/address.h"

namespace ckptfs::fs::cli {

// --endpoint, --region, --profile, --ca-file and --path-style.
void add_s3_options(CLI::App& command, io::S3Settings& settings);

using meta::remote::refuse_secrets;

struct RemoteOptions {
  std::string url;  // as it was given
  io::S3Settings s3;
  std::string timeout = "60s";
  bool as_json = false;
};
// --json, --timeout and the options of S3.
void add_request_options(CLI::App& command, RemoteOptions& options);
// These, and URL. `argument`: "URL" or "URL/TAG".
void add_remote_options(CLI::App& command, RemoteOptions& options, const std::string& argument,
                        const std::string& about_argument);

struct Remote {
  std::unique_ptr<io::ObjectStore> store;
  std::chrono::milliseconds time;  // --timeout
};
// EINVAL, in words, for what the command line has wrong. ENOENT: a folder that is not there; the store itself would
// wait for its file system. `url`: of the remote alone.
Result<Remote> open_remote(const std::string& url, const RemoteOptions& options);

// What open_remote() refuses before it asks anything of the store.
Result<> check_remote(const std::string& url, const io::S3Settings& s3);

// The error with what to do about it, where its own words do not say it.
Error with_way_out(const Error& error);
// Prints that. Returns the exit code (system.h).
int fail_remote(const std::string& url, const Error& error);

// The command calls run(). `Arguments` has the field `options`, which are RemoteOptions.
template <class Arguments>
void choose(CLI::App& command, Chosen& chosen, std::shared_ptr<Arguments> arguments,
            Result<int> (*run)(const Arguments&)) {
  command.callback([arguments, run, &chosen] {
    chosen = [arguments, run] {
      const auto code = run(*arguments);
      return code ? code.value() : fail_remote(arguments->options.url, code.error());
    };
  });
}

}  // namespace ckptfs::fs::cli
