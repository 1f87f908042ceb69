#include "meta/steps/step_writers.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string_view>

namespace ckptfs::meta {
namespace {

constexpr const char* kWritersXattr = "user.ckptfs.writers";
constexpr std::chrono::seconds kCommand{2};
constexpr std::string_view kCommandWord = "command";
constexpr size_t kMostWriters = 1024;  // of one step; then one that cannot be seen stands for the others

// A line each: "BOOT-ID pid:[4026531836] PID START", with "command" behind it.
std::string encode_writers(const std::vector<StepWriter>& writers) {
  std::ostringstream text;
  for (const StepWriter& one : writers) {
    text << one.place << ' ' << one.process.pid << ' ' << one.process.start
         << (one.is_command ? " " + std::string(kCommandWord) : "") << '\n';
  }
  return text.str();
}

Result<std::vector<StepWriter>> decode_writers(const std::string& text) {
  std::vector<StepWriter> writers;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string boot, space, kind;
    StepWriter writer;
    if (!(fields >> boot >> space >> writer.process.pid >> writer.process.start)) {
      return Error(EIO, "the index holds a damaged record of who wrote to a step");
    }
    writer.place = boot + ' ' + space;
    writer.is_command = fields >> kind && kind == kCommandWord;
    writers.push_back(std::move(writer));
  }
  return writers;
}

std::string_view boot_of(std::string_view place) { return place.substr(0, place.find(' ')); }

}  // namespace

StepWriter writer_now(const std::string& place, const Process& process) {
  return {place, process, process.pid != 0 && age_of(process) < kCommand};
}

bool are_commands(const std::vector<StepWriter>& writers, const std::string& here) {
  const auto is_one = [&here](const StepWriter& one) { return one.is_command && boot_of(one.place) == boot_of(here); };
  return !writers.empty() && std::ranges::all_of(writers, is_one);
}

Result<std::optional<std::vector<StepWriter>>> step_writers(const Store& store, InodeNumber step) {
  const auto text = store.index().xattr(step, kWritersXattr);
  if (!text && text.error().errno_value() == ENOENT) return std::optional<std::vector<StepWriter>>();
  TRY(text);
  TRY_ASSIGN(auto writers, decode_writers(text.value()));
  return std::optional(std::move(writers));
}

Result<> note_step_writer(Store& store, InodeNumber step, const std::optional<StepWriter>& writer) {
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(const InodeRecord record, store.index().inode(step));
  if (record.nlink == 0) return Error(ENOENT);
  TRY_ASSIGN(auto known, step_writers(store, step));
  std::vector<StepWriter> writers = known.value_or(std::vector<StepWriter>());
  const auto is_writer = [&writer](const StepWriter& one) { return one.is_same(*writer); };
  const bool is_new = writer && std::ranges::none_of(writers, is_writer);
  if (known && (!is_new || writers.size() > kMostWriters)) return success();
  if (is_new) writers.push_back(writers.size() < kMostWriters ? *writer : StepWriter{writer->place, {}, false});
  change.batch.put_xattr(step, kWritersXattr, encode_writers(writers));
  return store.tree().commit(std::move(change));
}

Result<> forget_step_writers(Store& store, InodeNumber step) {
  Tree::Change change = store.tree().begin();
  TRY_ASSIGN(const auto known, step_writers(store, step));
  if (!known) return success();
  change.batch.erase_xattr(step, kWritersXattr);
  return store.tree().commit(std::move(change));
}

WritersState state_of_writers(const std::vector<StepWriter>& writers, const std::string& here,
                              const std::function<bool(const Process&)>& ended) {
  bool unknown = false;
  for (const StepWriter& one : writers) {
    if (boot_of(one.place) != boot_of(here)) continue;  // nothing outlives a boot
    const bool seen = one.process.pid != 0 && one.place == here;
    if (seen && !ended(one.process)) return WritersState::living;
    unknown = unknown || !seen;
  }
  return unknown ? WritersState::unknown : WritersState::ended;
}

}  // namespace ckptfs::meta
