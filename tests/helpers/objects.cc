// Asks an object store, for tests: what the daemon asks, from the shell.
//
//   objects URL [--endpoint E] [--region R] [--authorities FILE] [--within SECONDS] [--stall MS] put|make KEY
//   objects URL ... get KEY [OFFSET LENGTH] | list PREFIX | remove KEY | fill PREFIX COUNT | complete KEY UPLOAD SIZE
//
// What is put comes from stdin; `fill` makes COUNT objects, each with its own key in it.
//
// What it gets goes to stdout. An error goes to stderr as "ERRNO message", and the exit status is 1.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "io/log.h"
#include "io/objects/open_object_store.h"

namespace ckptfs::io {
namespace {

struct Words {
  std::string url, act, key, second, third;
  unsigned seconds = 60, stall = 60'000;
  S3Settings settings;
};

Result<> get(ObjectStore& store, const Words& words, const RequestLimits& limits) {
  std::string text;
  if (words.third.empty()) {
    TRY_ASSIGN(text, get_text(store, words.key, size_t{1} << 30, limits));
  } else {
    text.resize(std::stoull(words.third));
    TRY_ASSIGN(const size_t got,
               store.get(words.key, std::stoull(words.second), std::as_writable_bytes(std::span(text)), limits));
    text.resize(got);
  }
  std::cout << text;
  return success();
}

Result<> fill(ObjectStore& store, const Words& words, const RequestLimits& limits) {
  for (unsigned long number = 0; number < std::stoul(words.second); ++number) {
    const std::string key = words.key + std::to_string(number);
    TRY(store.put(key, content_of(key), PutMode::make, limits));
  }
  return success();
}

Result<> act(const Words& words) {
  TRY_ASSIGN(const auto store, open_object_store(words.url, words.settings));
  RequestLimits limits = RequestLimits::within(std::chrono::seconds(words.seconds));
  limits.stall = std::chrono::milliseconds(words.stall);
  if (words.act == "get") return get(*store, words, limits);
  if (words.act == "fill") return fill(*store, words, limits);
  if (words.act == "complete") {
    return store->complete_upload({words.key, words.second}, std::stoull(words.third), {"tag"}, limits);
  }
  if (words.act == "remove") return store->remove(words.key, limits);
  if (words.act == "list") {
    const auto print = [](const ObjectInfo& object) -> Result<> {
      std::cout << object.key << "\t" << object.size << "\t" << std::chrono::system_clock::to_time_t(object.changed)
                << "\n";
      return success();
    };
    return for_each_object(*store, words.key, print, limits);
  }
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  return store->put(words.key, content_of(text), words.act == "make" ? PutMode::make : PutMode::replace, limits);
}

}  // namespace
}  // namespace ckptfs::io

int main(int argc, char** argv) {
  ckptfs::io::Words words;
  CLI::App app("Asks an object store");
  app.add_option("url", words.url)->required();
  app.add_option("act", words.act)
      ->required()
      ->check(CLI::IsMember({"put", "make", "get", "list", "remove", "fill", "complete"}));
  app.add_option("key", words.key);
  app.add_option("second", words.second);
  app.add_option("third", words.third);
  app.add_option("--endpoint", words.settings.endpoint);
  app.add_option("--region", words.settings.region);
  app.add_option("--profile", words.settings.profile);
  app.add_option("--authorities", words.settings.authorities);
  app.add_option("--within", words.seconds);
  app.add_option("--stall", words.stall);
  CLI11_PARSE(app, argc, argv);
  ckptfs::log::send_to([](ckptfs::log::Level, const std::string& line) { std::cerr << "log: " << line << "\n"; });
  const auto done = ckptfs::io::act(words);
  std::cout.flush();
  if (done) return 0;
  std::cerr << done.error().errno_value() << " " << done.error().message() << "\n";
  return 1;
}
