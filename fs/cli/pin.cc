// ckptfs pin, unpin and seal: each sets an xattr of steps (docs/control.md).
#include <sys/xattr.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "fs/cli/client.h"
#include "fs/cli/path_command.h"
#include "fs/cli/progress.h"

namespace ckptfs::fs::cli {
namespace {

using nlohmann::json;

struct Mark {
  const char* name;
  const char* about;
  const char* xattr;
  const char* value;
  const char* done;  // "pinned"
  const char* footer;
};

constexpr Mark kMarks[] = {
    {"pin", "Protect steps from rules and from `ckptfs rm`", "user.ckptfs.pin", "1", "pinned",
     "A pinned step that is sealed, too, is also safe from `rm -r`.\nExample:\n  ckptfs pin "
     "/ckpt/steps/global_step100"},
    {"unpin", "Let rules and `ckptfs rm` have pinned steps again", "user.ckptfs.pin", "0", "unpinned",
     "Example:\n  ckptfs unpin /ckpt/steps/global_step100"},
    {"seal", "Make steps read-only for good", "user.ckptfs.seal", "1", "sealed",
     "A sealed step never changes, but it can be removed. Refused while somebody has a file of it open for writing.\n"
     "Example:\n  ckptfs seal /ckpt/steps/global_step200"},
};

// An xattr brings back an errno alone. The daemon keeps the words for who asks (docs/control.md, `last_error`). What
// the kernel refuses by itself has none, and the daemon's would be of an earlier try.
Error explained(const std::string& path, int code) {
  if (code == EROFS || code == EACCES) return Error(code, std::generic_category().message(code));
  std::string words(4096, '\0');
  const ssize_t length = ::getxattr(path.c_str(), "user.ckptfs.last_error", words.data(), words.size());
  if (length <= 0) return Error(code, std::generic_category().message(code));
  words.resize(static_cast<size_t>(length));
  return Error(code, words);
}

Result<> set(const Mark& mark, const std::string& step) {
  TRY_ASSIGN(const Target target, find_target(step));
  TRY(check_answers(target.mount));
  const std::string path = io::path_outside(target.mount, target.path);
  const Waiting waiting(std::string(mark.name) + " " + path);
  const std::string value = mark.value;
  if (::setxattr(path.c_str(), mark.xattr, value.data(), value.size(), 0) == 0) return success();
  return explained(path, errno);
}

int run(const Mark& mark, const StepsArguments& arguments) {
  return for_each_step(arguments, mark.done, [&mark](const std::string& step) -> Result<json> {
    TRY(set(mark, step));
    return json(step);
  });
}

}  // namespace

void add_marks(CLI::App& app, Chosen& chosen) {
  for (const Mark& mark : kMarks) {
    auto arguments = std::make_shared<StepsArguments>();
    CLI::App* command = app.add_subcommand(mark.name, mark.about);
    command->add_option("STEP", arguments->steps, "A step of a series")->required();
    command->add_flag("--json", arguments->as_json, "Print as JSON");
    command->footer(mark.footer);
    command->callback([&mark, arguments, &chosen] { chosen = [&mark, arguments] { return run(mark, *arguments); }; });
  }
}

}  // namespace ckptfs::fs::cli
