#include "fs/steps/step_judgement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "fs/steps/tracker_files.h"
#include "meta/formats/trainer_state.h"
#include "meta/names.h"
#include "meta/steps/steps.h"
#include "meta/tree/step_detection.h"

namespace ckptfs::fs {
namespace {

using meta::formats::Completeness;
using meta::formats::CompletenessJudgement;

constexpr const char* kSayWhole = "`setfattr -n user.ckptfs.whole -v 1 STEP` says that they are not";

// The file of that path in the step; 0: there is none. It may be empty, as what `touch` makes.
Result<meta::InodeNumber> find_file(const meta::Tree& tree, meta::InodeNumber step, std::string_view path) {
  meta::InodeNumber at = step;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    const auto child = tree.child(at, std::string(path.substr(0, end)));
    const int failed = child ? 0 : child.error().errno_value();
    if (failed == ENOENT || failed == ENOTDIR) return meta::InodeNumber{0};
    TRY_ASSIGN(at, child);
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  TRY_ASSIGN(const meta::InodeRecord record, tree.inode(at));
  return record.is_regular() ? at : meta::InodeNumber{0};
}

// Has a process that writes to the step, or wrote to it last, made such a file in a step before? That others make one,
// or made one since, tells nothing.
Result<bool> should_have_file(const meta::Store& store, meta::InodeNumber step, const std::string& path,
                              const meta::LedgerEntry& ledger) {
  if (std::ranges::none_of(ledger.writers, &meta::StepWriter::is_run)) return false;
  TRY_ASSIGN(const meta::InodeRecord record, store.tree().inode(step));
  TRY_ASSIGN(const auto entries, store.tree().list(record.parent));
  for (const meta::DirectoryEntry& entry : entries) {
    if (entry.type != S_IFDIR || entry.inode >= step) continue;  // numbers of inodes only grow
    const auto other = meta::ledger_of(store, entry.inode);
    if (!other || !meta::share_a_run(ledger, other.value())) continue;
    TRY_ASSIGN(const meta::InodeNumber file, find_file(store.tree(), entry.inode, path));
    if (file != 0 && file < step) return true;
  }
  return false;
}

CompletenessJudgement an_unknown_one(const std::string& reason) { return {Completeness::unknown, reason}; }
CompletenessJudgement a_complete_one() { return {Completeness::complete, {}}; }

// May the file be from before another run wrote to the step?
Result<bool> may_be_older(const meta::Tree& tree, meta::InodeNumber file, const meta::LedgerEntry& ledger) {
  if (!ledger.is_written_again()) return false;
  TRY_ASSIGN(const meta::Attributes attributes, tree.attributes(file));
  return ledger.is_set_back() || meta::wall_time(attributes.stat.st_ctim) <= std::max(ledger.again, ledger.whole);
}

std::string older_words(const std::string& file) {
  return "another run has written to it since " + file + " was written";
}

Result<CompletenessJudgement> judge_by_marker(const meta::Store& store, meta::InodeNumber step,
                                              const std::string& marker, const meta::LedgerEntry& ledger,
                                              const CompletenessJudgement& by_files) {
  TRY_ASSIGN(const meta::InodeNumber file, find_file(store.tree(), step, marker));
  if (file != 0) {
    TRY_ASSIGN(const bool older, may_be_older(store.tree(), file, ledger));
    return older ? an_unknown_one(older_words(marker)) : a_complete_one();
  }
  if (by_files.completeness == Completeness::complete) return an_unknown_one(marker + " is not there");
  TRY_ASSIGN(const bool lost, should_have_file(store, step, marker, ledger));
  return CompletenessJudgement{lost ? Completeness::incomplete : Completeness::unknown, marker + " is not there"};
}

// Empty: it is of one run, as far as is known. What commands wrote is of none. `begun`: a save has, since it was whole.
std::string why_of_two_runs(const SaveTimes& times, const meta::LedgerEntry& ledger, bool begun) {
  std::map<uint64_t, std::string> writers = times.writers;
  if (begun) writers.emplace(times.state_writer, meta::formats::kTrainerStateName);
  std::map<unsigned, std::string> runs;
  for (const auto& [program, path] : writers) {
    const meta::StepWriter* const writer = ledger.writer_of(program);
    if (writer != nullptr) runs.emplace(writer->run, fmt::format("process {} wrote {}", writer->process.pid, path));
  }
  if (runs.size() < 2) return {};
  return fmt::format("{}, and {}, of another run: they may be of two saves; {}", runs.begin()->second,
                     std::next(runs.begin())->second, kSayWhole);
}

}  // namespace

Result<Declared> declared_of(const meta::Tree& tree, meta::InodeNumber step) {
  const auto word = tree.xattr(step, meta::kWholeXattr);
  if (!word && word.error().errno_value() != ENODATA) return word.error();
  TRY_ASSIGN(const meta::InodeRecord record, tree.inode(step));
  TRY_ASSIGN(meta::DeclaredSteps of_series, meta::declared_steps(tree, record.parent));
  return Declared{word.has_value(), std::move(of_series.complete_when)};
}

// Whoever may make names in the series may make such a file. It counts for his own steps only.
Result<std::string> why_not_named(const meta::Tree& tree, meta::InodeNumber step, const std::string& tracker,
                                  const meta::LedgerEntry& ledger) {
  TRY_ASSIGN(const meta::InodeRecord own, tree.inode(step));
  const std::string silent = tracker + " has not named it";
  TRY_ASSIGN(const auto file, none_if_gone(tree.child(own.parent, tracker)));
  if (!file) return silent;
  TRY_ASSIGN(const auto record, none_if_gone(tree.inode(*file)));
  if (!record) return silent;  // another takes its place this moment
  if (!latest_of(tree, own.parent, tracker).names(meta::name_of(tree, step))) return silent;
  TRY_ASSIGN(const meta::InodeRecord series, tree.inode(own.parent));
  const uint32_t user = record->uid;
  if (user != 0 && user != series.uid && user != own.uid)
    return tracker + " names it, and belongs to another user; remove that file once, so that a training makes its own";
  TRY_ASSIGN(const bool older, may_be_older(tree, *file, ledger));
  return older ? older_words(tracker) : std::string();
}

Result<CompletenessJudgement> heed_declared(const meta::Store& store, meta::InodeNumber step,
                                            const meta::LedgerEntry& ledger, const Declared& declared,
                                            CompletenessJudgement judgement) {
  const meta::Tree& tree = store.tree();
  if (judgement.completeness == Completeness::weights) return judgement;
  if (declared.whole) return a_complete_one();
  const std::string& when = declared.complete_when;
  const std::string tag = meta::name_of(tree, step);
  const bool by_name = meta::is_set_aside_name(tag) || meta::is_partial_name(tag);
  if (when.empty() || by_name || judgement.completeness == Completeness::incomplete) return judgement;
  if (judgement.completeness == Completeness::complete && ledger.was_whole()) return judgement;
  if (std::ranges::count(meta::kTrackers, when) != 0) {
    if (ledger.named) return a_complete_one();
    TRY_ASSIGN(const std::string why, why_not_named(tree, step, when, ledger));
    return why.empty() ? a_complete_one() : an_unknown_one(why);
  }
  if (when != meta::kWhenQuiet) return judge_by_marker(store, step, when, ledger, judgement);
  return ledger.is_written_again() ? an_unknown_one("another run has written to it since it was whole")
                                   : a_complete_one();
}

SaveTimes save_times_of(const views::FilesOfStep& files, const meta::formats::StepNames& names) {
  SaveTimes times;
  meta::WallTime others;
  for (size_t at = 0; at < files.list().size(); ++at) {
    const std::string& path = files.list()[at].path;
    if (files.made()[at].frozen) continue;
    const meta::WallTime written = meta::wall_time(files.made()[at].ctime);
    times.newest = std::max(times.newest, written);
    const bool is_first = meta::formats::is_written_first(names, path);
    const bool is_checkpoint_file = meta::formats::is_checkpoint_file(names, path);
    if (is_first && (times.first_written.empty() || written > times.first_written_at)) {
      times.first_written = path;
      times.first_written_at = written;
    }
    if (path == meta::formats::kTrainerStateName) {
      times.state_writer = files.made()[at].writer;
    } else if (is_first || is_checkpoint_file) {
      times.writers.emplace(files.made()[at].writer, path);
    }
    if (!meta::formats::is_note(path)) {
      others = std::max(others, written);
      times.others_from = times.all_writers.empty() ? written : std::min(times.others_from, written);
      times.all_writers.insert(files.made()[at].writer);
    }
    if (!is_checkpoint_file) continue;
    times.saved_at = std::max(times.saved_at, written);
    if (times.oldest.empty() || written < times.oldest_at) {
      times.oldest = path;
      times.oldest_at = written;
    }
  }
  if (times.oldest.empty()) times.saved_at = others;
  return times;
}

bool is_as_it_was(const SaveTimes& times, const meta::LedgerEntry& ledger, const CompletenessJudgement& by_files) {
  const bool newer = std::max(times.saved_at, times.first_written_at) > ledger.whole;
  if (by_files.completeness != Completeness::complete || ledger.whole == meta::WallTime() || newer) return false;
  // A clock that was set back dates a change before that, so who wrote the files counts, too.
  return std::ranges::none_of(times.writers, [&ledger](const auto& writer) {
    const auto is_it = [&writer](const meta::StepWriter& one) { return one.is_program(writer.first); };
    return writer.first == 0 || std::ranges::any_of(ledger.writers, is_it);
  });
}

CompletenessJudgement heed_second_save(const SaveTimes& times, const meta::LedgerEntry& ledger,
                                       meta::formats::CompletenessJudgement judgement) {
  const bool begun = !times.first_written.empty() && times.first_written_at > ledger.whole;
  const bool ended = times.oldest.empty() || times.oldest_at > ledger.whole;
  if (meta::formats::is_whole(judgement.completeness)) {
    if (const std::string why = why_of_two_runs(times, ledger, begun); !why.empty()) return an_unknown_one(why);
  }
  if (judgement.completeness != Completeness::complete || !ledger.is_written_again()) return judgement;
  if (ledger.is_set_back()) {
    return an_unknown_one(std::string("another run wrote to it after it had been whole, and the clock had been set "
                                      "back: its files may be of two saves; ") +
                          kSayWhole);
  }
  if (!begun || ended) return judgement;
  return an_unknown_one(times.first_written + " was written again after the step had been whole, and " + times.oldest +
                        " was not: they may be of two saves");
}

Result<CompletenessJudgement> heed_symlinks(const meta::Tree& tree, meta::InodeNumber step,
                                            meta::formats::CompletenessJudgement judgement) {
  if (judgement.completeness != Completeness::incomplete) return judgement;
  TRY_ASSIGN(const bool linked, meta::holds_symlink(tree, step));
  if (!linked) return judgement;
  return meta::formats::CompletenessJudgement{
      Completeness::unknown, judgement.reason + ", but it has a symlink, which may lead to what it lacks"};
}

}  // namespace ckptfs::fs
