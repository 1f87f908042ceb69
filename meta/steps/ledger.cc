#include "meta/steps/ledger.h"

#include <algorithm>
#include <cerrno>
#include <iomanip>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "io/digest.h"
#include "meta/names.h"

namespace ckptfs::meta {
namespace {

constexpr size_t kMostSavers = 64;     // the last ones; who is none of them is not known to have saved the step
constexpr size_t kMostWriters = 1024;  // of one step; then one that cannot be seen stands for the others

int64_t count_of(WallTime time) { return time.time_since_epoch().count(); }
WallTime wall_of(int64_t count) { return WallTime(std::chrono::nanoseconds(count)); }

// A line for each fact: "unfinished run|commands", "again TIME" (by a run, whether it is unfinished or not), "named",
// "saved SERIES", "saves COUNT", "pushed NAME", "whole TIME", "seen SERIES CHANGED CHANGED_AT COMPLETED
// COMPLETED_AT", "order TERM TIME AS_OF WALL STORE RUN COUNT SERIES REMOTE", "agreed AS_OF FILES ID",
// "run|command|saver BOOT-ID pid:[4026531836] PID START BEGAN SINCE RUN PROGRAM LAUNCHER LAUNCH RANK".
std::string encode_ledger(const LedgerEntry& entry) {
  std::ostringstream text;
  const auto put = [&text](const char* fact, const StepWriter& one) {
    text << fact << ' ' << one.place << ' ' << one.process.pid << ' ' << one.process.start << ' ' << one.began.count()
         << ' ' << count_of(one.since) << ' ' << one.run << ' ' << one.program << ' ' << one.launch.launcher << ' '
         << one.launch.id << ' ' << one.launch.rank << '\n';
  };
  if (entry.unfinished) text << "unfinished " << (entry.by_run ? "run" : "commands") << '\n';
  if (entry.by_run) text << "again " << count_of(entry.again) << '\n';
  if (entry.saved_in != 0) text << "saved " << entry.saved_in << '\n';
  if (entry.saves != 0) text << "saves " << entry.saves << '\n';
  if (!entry.pushed.empty()) text << "pushed " << std::quoted(entry.pushed) << '\n';
  if (entry.named) text << "named\n";
  if (entry.whole != WallTime()) text << "whole " << count_of(entry.whole) << '\n';
  if (const auto& order = entry.order) {
    text << "order " << order->term << ' ' << order->time << ' ' << count_of(order->as_of) << ' '
         << count_of(order->noted.wall) << ' ' << order->noted.store.count() << ' ' << order->run << ' ' << order->count
         << ' ' << order->series << ' ' << std::quoted(order->remote) << '\n';
  }
  if (entry.agreed)
    text << "agreed " << count_of(entry.agreed->as_of) << ' ' << entry.agreed->files << ' '
         << std::quoted(entry.agreed->id) << '\n';
  if (const auto& seen = entry.seen) {
    text << "seen " << seen->series << ' ' << count_of(seen->changed) << ' ' << seen->changed_at.count() << ' '
         << count_of(seen->completed) << ' ' << seen->completed_at.count() << '\n';
  }
  for (const StepWriter& one : entry.savers) put("saver", one);
  for (const StepWriter& one : entry.writers) put(one.is_command ? "command" : "run", one);
  return text.str();
}

bool decode_line(std::istream& line, LedgerEntry& entry) {
  std::string fact, boot, space;
  int64_t first = 0, second = 0, third = 0, fourth = 0;
  line >> fact;
  if (fact == "unfinished") {
    entry.unfinished = static_cast<bool>(line >> boot);
    entry.by_run = entry.by_run || boot != "commands";
  } else if (fact == "saved") {
    line >> entry.saved_in;
  } else if (fact == "saves") {
    line >> entry.saves;
  } else if (fact == "pushed") {
    line >> std::quoted(entry.pushed);
  } else if (fact == "named") {
    entry.named = true;
  } else if (fact == "whole" || fact == "again") {
    line >> first;
    (fact == "whole" ? entry.whole : entry.again) = wall_of(first);
    entry.by_run = entry.by_run || fact == "again";
  } else if (fact == "newest") {  // of stores from before 0.1.0
  } else if (fact == "order") {
    OrderOfSave& order = entry.order.emplace();
    line >> order.term >> order.time >> first >> second >> third >> order.run >> order.count >> order.series >>
        std::quoted(order.remote);
    order.as_of = wall_of(first);
    order.noted = {wall_of(second), StoreTime(third)};
  } else if (fact == "agreed") {
    AgreedSave& agreed = entry.agreed.emplace();
    line >> first >> agreed.files >> std::quoted(agreed.id);
    agreed.as_of = wall_of(first);
  } else if (fact == "seen") {
    SeenStep& seen = entry.seen.emplace();
    line >> seen.series >> first >> second >> third >> fourth;
    seen = {seen.series, wall_of(first), StoreTime(second), wall_of(third), StoreTime(fourth)};
  } else {
    if (fact != "run" && fact != "command" && fact != "saver") return false;
    StepWriter& writer = (fact == "saver" ? entry.savers : entry.writers).emplace_back();
    writer.is_command = fact == "command";
    line >> boot >> space >> writer.process.pid >> writer.process.start >> first;
    writer.place = boot + ' ' + space;
    writer.began = StoreTime(first);
    if (!line.eof()) line >> second;  // older entries end here
    writer.since = wall_of(second);
    if (!line.eof())
      line >> writer.run >> writer.program >> writer.launch.launcher >> writer.launch.id >> writer.launch.rank;
  }
  return !line.fail();
}

Result<LedgerEntry> decode_ledger(const std::string& text) {
  LedgerEntry entry;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream facts(line);
    if (!decode_line(facts, entry))
      return Error(EIO, "the index holds a damaged record of who wrote to a step, and when");
  }
  return entry;
}

std::string_view boot_of(std::string_view place) { return place.substr(0, place.find(' ')); }

const StepWriter* find_in(const std::vector<StepWriter>& writers, const StepWriter& writer) {
  const auto found = std::ranges::find_if(writers, [&](const StepWriter& one) { return one.is_same(writer); });
  return found == writers.end() ? nullptr : &*found;
}

// Who saved the step may have more to write than makes it whole.
bool is_new_run(const LedgerEntry& entry, const StepWriter& writer) {
  return !writer.is_command && find_in(entry.savers, writer) == nullptr;
}

std::chrono::nanoseconds distance(const StepWriter& one, const StepWriter& other) {
  return std::chrono::abs(one.began - other.began);
}

// The programs that train and have written to the step, as far as they are kept; some twice.
template <typename Entry>
auto training_writers(Entry& entry) {
  std::vector<std::conditional_t<std::is_const_v<Entry>, const StepWriter*, StepWriter*>> found;
  for (auto* const list : {&entry.savers, &entry.writers}) {
    for (auto& one : *list) {
      if (one.is_run()) found.push_back(&one);
    }
  }
  return found;
}

unsigned new_run(const LedgerEntry& entry) {
  unsigned newest = 0;
  for (const StepWriter* const one : training_writers(entry)) newest = std::max(newest, one->run);
  return newest + 1;
}

// A launch that began later than another one may have the same id, if that one has ended.
bool are_of_one_launch(const StepWriter& known, const StepWriter& fresh, const Ended& ended) {
  constexpr std::chrono::seconds kLaunch{10};  // for so long all ranks of a launch begin
  if (known.launch.launcher == 0 || known.launch.launcher != fresh.launch.launcher) return false;
  const bool lives = known.place == fresh.place && !ended(known.process);
  return known.launch.id == fresh.launch.id && (lives || distance(known, fresh) <= kLaunch);
}

// A new writer joins the run of its program, else of its launch. One of another launch begins a new run. Without a
// launch it joins the run of the writer that began nearest. If there are several runs, that must be within a minute.
unsigned likely_run(const LedgerEntry& entry, const StepWriter& fresh, const Ended& ended) {
  constexpr std::chrono::minutes kNear{1};
  const auto writers = training_writers(entry);
  const auto find = [&](const auto& is_it) {
    const auto found = std::ranges::find_if(writers, [&](const StepWriter* one) { return is_it(*one); });
    return found == writers.end() ? nullptr : *found;
  };
  const StepWriter* same = find([&](const StepWriter& one) { return one.is_program(fresh.program); });
  if (same == nullptr) same = find([&](const StepWriter& one) { return are_of_one_launch(one, fresh, ended); });
  if (same != nullptr) return same->run;
  const unsigned launcher = fresh.launch.launcher;
  if (launcher != 0 && find([=](const StepWriter& one) { return one.launch.launcher == launcher; }) != nullptr)
    return new_run(entry);
  const auto nearest = std::ranges::min_element(writers, {}, [&](const auto* one) { return distance(*one, fresh); });
  if (nearest == writers.end()) return 0;
  const bool undivided = find([](const StepWriter& one) { return one.run != 0; }) == nullptr;
  return undivided || distance(**nearest, fresh) <= kNear ? (*nearest)->run : new_run(entry);
}

// When the step became complete, by the store's clock. Never 0, which means that it is not complete.
StoreTime completion_time(WallTime date, const Moment& now) {
  constexpr std::chrono::minutes kRecent{1};
  const auto age = now.wall - date;
  const bool recent = age >= age.zero() && age < kRecent;
  return std::max(recent ? now.store - age : now.store, StoreTime(1));
}

// What the change means for who watches the step.
void note_events(Tree::Change& change, InodeNumber step, const InodeRecord& record, const LedgerEntry& before,
                 const LedgerEntry& after) {
  if (after.is_being_saved() && !before.is_being_saved()) change.note_event(StepEvent::What::began, step, record);
  const bool is_again = before.unfinished && before.by_run && !after.by_run;
  if (after.is_known_whole() && (after.saves != before.saves || is_again))
    change.note_event(StepEvent::What::completed, step, record);
  if (after.pushed != before.pushed) change.note_event(StepEvent::What::pushed, step, record, after.pushed);
}

}  // namespace

const StepWriter* LedgerEntry::writer_of(uint64_t program) const {
  const auto runs = training_writers(*this);
  const auto found = std::ranges::find_if(runs, [program](const auto* one) { return one->is_program(program); });
  return found == runs.end() ? nullptr : *found;
}

bool LedgerEntry::is_saved_in(InodeNumber series) const {
  return saved_in == series || (whole == WallTime() && std::ranges::any_of(writers, &StepWriter::is_run));
}

Result<LedgerEntry> ledger_of(const Store& store, InodeNumber step) {
  TRY_ASSIGN(const auto text, none_if_gone(store.index().xattr(step, kLedgerXattr)));
  return text ? decode_ledger(*text) : LedgerEntry();
}

Result<LedgerEntry> change_ledger(Store& store, InodeNumber step, const std::function<void(LedgerEntry&)>& change) {
  Tree::Change tree_change = store.tree().begin();
  TRY_ASSIGN(const InodeRecord record, store.index().inode(step));
  if (record.nlink == 0) return Error(ENOENT);
  TRY_ASSIGN(const LedgerEntry known, ledger_of(store, step));
  LedgerEntry changed = known;
  change(changed);
  if (changed == known) return changed;
  tree_change.batch.put_xattr(step, kLedgerXattr, encode_ledger(changed));
  tree_change.batch.allow_on_full_store();  // what it tells protects
  note_events(tree_change, step, record, known, changed);
  TRY(store.tree().commit(std::move(tree_change)));
  return changed;
}

uint64_t program_id(const std::string& place, const Process& origin) {
  return io::short_digest_of(place + ' ' + std::to_string(origin.pid) + ' ' + std::to_string(origin.start));
}

StepWriter writer_now(const std::string& place, const Process& process, const StoreClock& clock, bool tool) {
  const bool is_command = process.pid != 0 && (tool || age_of(process) < kCommandAge);
  return {place, process, clock.at_boot() + start_of(process), is_command};
}

bool is_noted(const LedgerEntry& entry, const std::optional<StepWriter>& writer) {
  const StepWriter* const known = writer ? find_in(entry.writers, *writer) : nullptr;
  const bool is_full = entry.writers.size() > kMostWriters && entry.by_run;
  return entry.unfinished && (is_full || (known != nullptr && (entry.by_run || !is_new_run(entry, *known))));
}

void note_writer(LedgerEntry& entry, const std::optional<StepWriter>& writer, WallTime now, const Ended& ended) {
  const StepWriter* const known = writer ? find_in(entry.writers, *writer) : nullptr;
  const StepWriter* const one = known == nullptr && writer ? &*writer : known;
  entry.unfinished = true;
  entry.named = entry.named && one != nullptr && one->is_command;
  if (one == nullptr || is_new_run(entry, *one)) {
    entry.by_run = true;
    entry.again = entry.again == WallTime() ? now : std::min(entry.again, now);
  }
  if (!writer || known != nullptr || entry.writers.size() > kMostWriters) return;
  const unsigned run = writer->is_run() ? likely_run(entry, *writer, ended) : 0;
  entry.writers.push_back(entry.writers.size() < kMostWriters ? *writer : StepWriter{writer->place, {}, {}, false});
  entry.writers.back().since = now;
  entry.writers.back().run = run;
}

bool tells_another_run(const LedgerEntry& entry, uint64_t writer, uint64_t before) {
  if (writer == before) return false;
  const StepWriter *const one = entry.writer_of(writer), *const other = entry.writer_of(before);
  if (one == nullptr || other == nullptr || one->run != other->run) return false;
  const bool are_ranks = one->launch.launcher != 0 && one->launch.launcher == other->launch.launcher &&
                         one->launch.id == other->launch.id && one->launch.rank != other->launch.rank;
  return !are_ranks;
}

void note_overwritten(LedgerEntry& entry, uint64_t writer, uint64_t before) {
  if (!tells_another_run(entry, writer, before)) return;
  const StepWriter one = *entry.writer_of(writer), other = *entry.writer_of(before);
  const unsigned run = new_run(entry);
  for (StepWriter* const known : training_writers(entry)) {
    const StepWriter* first = entry.writer_of(known->program);  // forks of it began later
    if (first == nullptr) first = known;
    const bool nearer = distance(*first, one) < distance(*first, other);
    const bool moves = known->is_program(writer) || (nearer && !known->is_program(before));
    if (known->run == other.run && moves) known->run = run;
  }
}

void note_whole(LedgerEntry& entry, InodeNumber series, WallTime changed, WallTime oldest,
                const std::vector<uint64_t>& programs) {
  std::optional<unsigned> run;
  for (const uint64_t program : programs) {
    if (const StepWriter* const writer = entry.writer_of(program)) run = writer->run;
  }
  const bool is_save = entry.whole == WallTime() || oldest > entry.whole;
  if (is_save) ++entry.saves;
  if (is_save && std::ranges::any_of(entry.writers, &StepWriter::is_run)) entry.saved_in = series;
  for (const StepWriter& one : entry.writers) {
    if (!one.is_run() || (run && one.run != *run) || find_in(entry.savers, one) != nullptr) continue;
    if (entry.savers.size() >= kMostSavers) entry.savers.erase(entry.savers.begin());
    entry.savers.push_back(one);
  }
  entry.writers.clear();
  entry.unfinished = entry.by_run = false;
  entry.again = {};
  entry.whole = changed;
}

void note_pushed(LedgerEntry& entry, std::string name) {
  std::ranges::replace(name, '\n', '?');  // it becomes a line
  entry.pushed = std::move(name);
}

bool share_a_run(const LedgerEntry& one, const LedgerEntry& other) {
  return std::ranges::any_of(one.writers, [&other](const StepWriter& writer) {
    return writer.is_run() && (find_in(other.writers, writer) != nullptr || find_in(other.savers, writer) != nullptr);
  });
}

bool are_commands(const std::vector<StepWriter>& writers, const std::string& here) {
  const auto is_one = [&here](const StepWriter& one) { return one.is_command && boot_of(one.place) == boot_of(here); };
  return !writers.empty() && std::ranges::all_of(writers, is_one);
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

SeenStep see_step(const std::optional<SeenStep>& before, InodeNumber series, WallTime changed,
                  const std::optional<WallTime>& completed, WallTime touched, const Moment& now) {
  const bool known = before && before->series == series;
  SeenStep seen = known ? *before : SeenStep();
  seen.series = series;
  if (!known || seen.changed != changed) {
    seen.changed = changed;
    seen.changed_at = now.store;
  }
  if (!completed || (seen.completed_at != StoreTime(0) && seen.completed == *completed)) return seen;
  const bool same_save = seen.completed_at != StoreTime(0) && seen.completed == touched && *completed < touched;
  if (!same_save) seen.completed_at = completion_time(*completed, now);
  seen.completed = *completed;
  return seen;
}

Result<> note_seen(Store& store, const StoreClock& clock, const std::vector<std::pair<InodeNumber, SeenStep>>& steps) {
  if (steps.empty()) return success();
  Tree::Change change = store.tree().begin();
  for (const auto& [step, seen] : steps) {
    TRY_ASSIGN(const auto record, none_if_gone(store.index().inode(step)));
    if (!record || record->nlink == 0) continue;
    TRY_ASSIGN(LedgerEntry entry, ledger_of(store, step));
    entry.seen = seen;
    change.batch.put_xattr(step, kLedgerXattr, encode_ledger(entry));
  }
  clock.put(change.batch);
  return store.tree().commit(std::move(change));
}

}  // namespace ckptfs::meta
