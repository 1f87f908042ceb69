#include "fs/remote/save_order.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "io/digest.h"
#include "io/fd.h"
#include "meta/formats/file_kinds.h"
#include "meta/time.h"

namespace ckptfs::fs {
namespace {

using meta::OrderOfSave;
using meta::remote::Milliseconds;
using meta::remote::SaveLife;

// The kernel's times of files lag behind, and it counts the begin of processes in ticks.
constexpr Milliseconds kCoarse{100};
// The wall clock was set if it has gone on by so much more or less than the store's.
constexpr std::chrono::seconds kDrift{2};

// When the oldest of the files that a save writes was written; of a node that has none of these, as one without rank 0,
// of all that are no notes. Zero: nobody knows.
meta::WallTime written_from(const StepStatus& step) {
  return step.times.oldest.empty() ? step.times.others_from : step.times.oldest_at;
}

// The programs that wrote those.
std::set<uint64_t> writers_of(const StepStatus& step) {
  if (step.times.oldest.empty()) return step.times.all_writers;
  std::set<uint64_t> writers;
  for (const auto& [program, path] : step.times.writers) writers.insert(program);
  return writers;
}

uint64_t run_of(const StepStatus& step) {
  const std::set<uint64_t> writers = writers_of(step);
  return writers.empty() || writers.contains(0) ? 0 : io::short_digest_of(fmt::format("{}", fmt::join(writers, " ")));
}

// Has a program that is no command begun to write since the save was noted? Else a touch, or a copy of the store, has
// given all files new times. Of a step that is never whole, as that of one slot of several, nobody knows.
bool was_written(const StepStatus& step, const OrderOfSave& order) {
  if (step.ledger.whole == meta::WallTime()) return true;
  const auto wrote = [&order](const meta::StepWriter& one) { return !one.is_command && one.since > order.noted.wall; };
  return std::ranges::any_of(step.ledger.writers, wrote) || std::ranges::any_of(step.ledger.savers, wrote);
}

// A save of all files that a save writes; or one by `ckptfs save`, which shares them.
bool is_saved_since(const StepStatus& step, const OrderOfSave& order) {
  if (meta::wall_time(step.record.saved) > order.as_of) return true;
  return written_from(step) > order.as_of && was_written(step, order);
}

bool has_order(const StepStatus& step, const PushedTo& to) {
  const auto& order = step.ledger.order;
  return order && order->remote == to.remote && order->series == to.series && !is_saved_since(step, *order);
}

std::pair<uint32_t, uint64_t> place_of(const OrderOfSave& order) { return {order.term, order.time}; }

// Before the first of these with a higher number; `otherwise` if there is none.
OrderOfSave place_by_number(uint64_t number, const std::vector<std::pair<uint64_t, OrderOfSave>>& placed,
                            OrderOfSave otherwise) {
  const OrderOfSave* first = nullptr;
  for (const auto& [other, order] : placed) {
    if (other > number && (first == nullptr || place_of(order) < place_of(*first))) first = &order;
  }
  if (first == nullptr || first->time == 0) return otherwise;
  otherwise.term = first->term;
  otherwise.time = first->time - 1;
  return otherwise;
}

// Since it was seen first.
bool was_clock_set(const OrderOfSave& order, const meta::Moment& now) {
  const auto drift = (now.wall - order.noted.wall) - (now.store - order.noted.store);
  return std::chrono::abs(drift) > kDrift;
}

Milliseconds milliseconds_of(meta::WallTime time) {
  return std::chrono::duration_cast<Milliseconds>(time.time_since_epoch());
}

// When the youngest of the processes that wrote its files began. None: one of them is not known.
std::optional<meta::StoreTime> youngest_writer(const StepStatus& step) {
  std::optional<meta::StoreTime> youngest;
  for (const uint64_t program : writers_of(step)) {
    const meta::StepWriter* const writer = step.ledger.writer_of(program);
    if (program == 0 || writer == nullptr) return std::nullopt;
    youngest = std::max(youngest, std::optional(writer->began));
  }
  return youngest;
}

std::optional<SaveLife> life_of(const StepStatus& step, const meta::Moment& now) {
  const auto youngest = youngest_writer(step);
  const auto& order = step.ledger.order;
  if (!youngest || !order || was_clock_set(*order, now)) return std::nullopt;
  const meta::WallTime began = now.wall - (now.store - *youngest);
  return SaveLife{milliseconds_of(began), milliseconds_of(written_from(step)), milliseconds_of(step.times.saved_at),
                  kCoarse, order->count};
}

// The files of a step that are no notes, and were changed last by a time.
struct Written {
  uint64_t digest = 0;               // of their paths, of which they are, and of who wrote them
  std::set<uint64_t> writers;        // programs; 0: somebody whom nobody knows
  std::set<uint64_t> later_writers;  // of the others
};

Result<Written> written_by(const meta::Store& store, meta::InodeNumber step, meta::WallTime time) {
  Written written;
  std::set<std::string> files;
  TRY(meta::for_each_file(store.tree(), step, [&](const auto& path, meta::InodeNumber file) -> Result<> {
    const std::string name = fmt::format("{}", fmt::join(path, "/"));
    if (meta::formats::is_note(name)) return success();
    TRY_ASSIGN(const meta::InodeRecord record, store.tree().inode(file));
    bool is_later = false;
    if (record.is_live_file()) {
      TRY_ASSIGN(const io::Fd blob, store.tree().open_blob(file, record, O_RDONLY));
      TRY_ASSIGN(const struct stat facts, io::stat_fd(blob.get()));
      is_later = meta::wall_time(facts.st_ctim) > time;
    }
    if (!is_later) files.insert(fmt::format("{} {} {}", name, file, record.newest_writer));
    (is_later ? written.later_writers : written.writers).insert(record.newest_writer);
    return success();
  }));
  written.digest = io::short_digest_of(fmt::format("{}", fmt::join(files, "\n")));
  return written;
}

// While it is written nobody can tell who has written it.
Result<> note_run(meta::Store& store, const StepStatus& step) {
  const uint64_t run = run_of(step);
  if (run == 0) return success();
  const auto noted = meta::change_ledger(store, step.inode, [run](meta::LedgerEntry& entry) {
    if (entry.order) entry.order->run = run;
  });
  return noted || noted.error().errno_value() == ENOENT ? Result<>(success()) : noted.error();
}

}  // namespace

Result<> order_saves(meta::Store& store, const meta::StoreClock& clock, const PushedTo& to,
                     const std::vector<StepStatus>& steps) {
  const meta::Moment now{meta::wall_time(meta::now()), clock.now()};
  std::vector<const StepStatus*> fresh;
  std::vector<std::pair<uint64_t, OrderOfSave>> placed;  // by the steps' numbers
  for (const StepStatus& step : steps) {
    if (has_order(step, to)) placed.emplace_back(step.facts.number, *step.ledger.order);
    if (has_order(step, to) && step.ledger.order->run == 0) TRY(note_run(store, step));
    if (!has_order(step, to) && !step.failed) fresh.push_back(&step);
  }
  if (fresh.empty()) return success();
  TRY(clock.note(store.index()));  // what comes after the next boot is later
  std::ranges::sort(fresh, {}, [](const StepStatus* step) {
    const bool saved = step->facts.saved;
    return std::tuple(saved, saved ? step->saved : meta::WallTime(), step->facts.number,
                      std::string_view(step->facts.tag));
  });
  auto next = static_cast<uint64_t>(now.store.count());
  for (const StepStatus* const step : fresh) {
    const meta::WallTime as_of = step->times.newest == meta::WallTime() ? now.wall : step->times.newest;
    OrderOfSave order{.remote = to.remote,
                      .series = to.series,
                      .term = to.term,
                      .time = ++next,
                      .as_of = std::max(as_of, meta::wall_time(step->record.saved)),
                      .noted = now,
                      .run = run_of(*step)};
    const auto& before = step->ledger.order;
    if (before && before->series == to.series && before->run != 0 && before->run == order.run)
      order.count = before->count + 1;
    if (!step->facts.saved) order = place_by_number(step->facts.number, placed, order);
    placed.emplace_back(step->facts.number, order);
    const auto note = [&order](meta::LedgerEntry& entry) { entry.order = order; };
    const auto noted = meta::change_ledger(store, step->inode, note);
    if (!noted && noted.error().errno_value() != ENOENT) return noted.error();
  }
  return success();
}

bool is_saved_again(const StepStatus& step) { return !step.ledger.order || is_saved_since(step, *step.ledger.order); }

meta::remote::SaveFacts save_facts_of(const StepStatus& step, const meta::StoreClock& clock, std::string attempt) {
  return {std::move(attempt), life_of(step, {meta::wall_time(meta::now()), clock.now()})};
}

Result<> note_agreed(meta::Store& store, meta::InodeNumber step, const std::string& id) {
  meta::AgreedSave agreed{id, meta::wall_time(meta::now()), 0};
  TRY_ASSIGN(const Written written, written_by(store, step, agreed.as_of));
  agreed.files = written.digest;
  TRY(meta::change_ledger(store, step, [&agreed](meta::LedgerEntry& entry) { entry.agreed = agreed; }));
  return success();
}

Result<std::string> agreed_save(const meta::Store& store, meta::InodeNumber step, const meta::LedgerEntry& ledger) {
  const auto& agreed = ledger.agreed;
  if (!agreed) return std::string();
  TRY_ASSIGN(const Written written, written_by(store, step, agreed->as_of));
  const bool by_others =
      written.later_writers.contains(0) || !std::ranges::includes(written.writers, written.later_writers);
  return written.digest == agreed->files && !by_others ? agreed->id : std::string();
}

}  // namespace ckptfs::fs
