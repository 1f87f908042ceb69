#include "meta/remote/push.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "io/fault.h"
#include "io/log.h"
#include "io/parallel.h"
#include "meta/remote/pack_content.h"
#include "meta/remote/part.h"
#include "meta/remote/slot_parts.h"

namespace ckptfs::meta::remote {
namespace {

constexpr size_t kMostPackChunks = 16'384;  // of a pack: small files fill one in number before they do in bytes

uint64_t chunk_length(const Entry& file, uint64_t chunk) {
  return std::min(kChunkBytes, file.size - chunk * kChunkBytes);
}

// Where a chunk lies: 16 bytes, for each chunk of the step.
struct PlacedChunk {
  uint32_t push = 0;  // index into the part's pushes. 0: this push, which sends it
  uint32_t pack = 0;
  uint32_t offset = 0;
  uint32_t length = 0;
};

// The chunks that a pack gets are those from here on that this push sends, up to the next pack's first one.
struct PlannedPack {
  size_t entry = 0;    // of the first chunk
  uint64_t chunk = 0;  // in that file
  size_t place = 0;    // in the list of all
  uint64_t bytes = 0;
  size_t chunks = 0;
};

// A step that is lost or damaged there holds up no other one: all is sent.
Result<> without_lender(const Error& error) {
  if (!is_damage(error)) return error;
  log::warn("nothing is borrowed from a step: {}", error.message());
  return success();
}

// A part whose chunks may be borrowed, since a commit names it.
struct Lender {
  DecisionName decision;
  Part part;
  bool used = false;
};

// One call of push_part().
class Pusher {
 public:
  Pusher(io::ObjectStore& store, const Slot& slot, const StepImage& image, PushJournal& journal,
         const PushSettings& settings)
      : store_(store), slot_(slot), image_(image), journal_(journal), settings_(settings), digests_(image) {}

  Result<PushedPart> run();

 private:
  io::RequestLimits limits() const { return io::RequestLimits::within(settings_.time, settings_.stop); }
  Result<> digest_content();
  Result<std::optional<PushedPart>> find_part(const TagParts& listed);
  Result<bool> can_stay(const SlotPart& part, const TagParts& listed, const TagDecisions& decisions,
                        const TagHistory& history);
  Result<> check_journal(const TagParts& listed);
  Result<> find_lenders(const std::optional<SlotPart>& own);
  Result<> add_lender(const DecisionName& decision);
  Result<> plan();
  Result<> plan_file(size_t index);
  Result<std::optional<PlacedChunk>> borrow(const io::Digest& digest, uint64_t length,
                                            const std::vector<std::vector<Chunk>>& lent, size_t chunk);
  PlacedChunk use(const PushName& push, uint32_t pack, uint32_t offset, uint32_t length);
  PlacedChunk send_later(size_t index, uint64_t chunk, uint32_t length);
  Result<> send(size_t pack);
  Result<std::vector<PackedChunk>> chunks_of(const PlannedPack& planned, uint32_t pack);
  Result<Part> make_part();
  PartHeader header() const;
  Result<> put_part(const Part& part);
  void report(const std::string& object) const;

  io::ObjectStore& store_;
  const Slot& slot_;
  const StepImage& image_;
  PushJournal& journal_;
  const PushSettings& settings_;
  DigestsInOrder digests_;

  PushName push_;
  uint64_t number_ = 1;
  io::Digest content_{};
  uint64_t bytes_ = 0, borrowed_ = 0;
  std::atomic<uint64_t> sent_ = 0;
  std::vector<Lender> lenders_;
  std::vector<PushName> used_;  // [0] is push_
  std::map<PushName, uint32_t> index_of_push_;
  std::set<std::pair<PushName, uint32_t>> arrived_;  // packs of the journal that are there
  std::set<PushName> unfinished_;                    // the journal's pushes that are used
  std::vector<PlacedChunk> places_;
  std::vector<PlannedPack> packs_;
};

Result<> Pusher::digest_content() {
  TRY_ASSIGN(content_, content_of(image_));
  for (const Entry& entry : image_.entries()) bytes_ += entry.size;
  return success();
}

// Can this part still be what the slot says?
Result<bool> Pusher::can_stay(const SlotPart& part, const TagParts& listed, const TagDecisions& decisions,
                              const TagHistory& history) {
  const PushName& push = part.listed.push;
  const auto committed = history.commit_of(push);
  if (!committed && history.is_ended(push)) return false;
  const auto is_gone = [&](const CommittedStep& step) { return step.decision.n == committed && step.gone; };
  if (std::ranges::any_of(decisions.commits, is_gone)) return false;
  TRY_ASSIGN(const bool lost, has_lost_lender(store_, part.header.lenders, listed, history, limits()));
  if (lost) return false;
  TRY_ASSIGN(const bool spent, is_spent(store_, push, listed, history, limits()));
  return !spent || io::fault_value("part_spent");
}

// The same files are judged otherwise: somebody has said that the step is whole.
bool is_whole_now(const formats::CompletenessFacts& before, const formats::CompletenessFacts& now) {
  return formats::is_whole(now.own.completeness) && before.own.completeness == formats::Completeness::incomplete;
}

// Looks whether the slot's newest part is what the image holds, and can stay.
Result<std::optional<PushedPart>> Pusher::find_part(const TagParts& listed) {
  TRY_ASSIGN(const auto newest, newest_part(store_, listed.of_slot(slot_.slot), limits()));
  if (newest) number_ = newest->header.number + 1;
  TagHistory history;
  TRY_ASSIGN(const TagDecisions decisions, history.update(store_, image_.tag(), limits()));
  number_ = std::max(number_, history.highest_number(slot_.slot) + 1);  // the collector takes old parts away
  const bool is_last = newest && newest->header.number + 1 == number_;  // else a later one was committed, and is gone
  const bool is_same = is_last && newest->header.mount == slot_.mount && newest->header.content == content_;
  TRY_ASSIGN(const bool stays, is_same ? can_stay(*newest, listed, decisions, history) : Result<bool>(false));
  std::optional<Part> there;
  if (stays) {
    TRY_ASSIGN(there, fetch_part(store_, newest->listed.push, {}, settings_.folder, limits()));
  }
  if (!there || is_whole_now(there->header().facts, image_.facts())) {
    TRY(find_lenders(newest));
    return std::optional<PushedPart>();
  }
  const Part& part = *there;
  const PartName name{newest->listed.push, part.header().number, part.digest(), part.size()};
  return std::optional(PushedPart{name, 0, 0, true, part.header().lenders});
}

// The journal knows pushes that have no part. One whose part's name is taken was ended, or its part was put and the
// reply was lost: its packs are no longer kept for us. And what the journal knows may be gone: a store may be rolled
// back. What is not listed is sent again.
Result<> Pusher::check_journal(const TagParts& listed) {
  for (const PushName& push : journal_.pushes()) {
    if (std::ranges::binary_search(listed.ended, push) ||
        std::ranges::binary_search(listed.parts, push, {}, &ListedPart::push)) {
      return journal_.clear();
    }
  }
  for (const PushName& push : journal_.pushes()) {
    const auto note = [this](const io::ObjectInfo& object) -> Result<> {
      if (const auto pack = parse_pack_key(object.key)) arrived_.emplace(pack->push, pack->pack);
      return success();
    };
    TRY(io::for_each_object(store_, kPacks + push.text() + "/", note, limits()));
  }
  return success();
}

Result<> Pusher::add_lender(const DecisionName& decision) {
  const auto commit = fetch_commit(store_, decision, limits());
  if (!commit) return without_lender(commit.error());
  if (slot_.slot >= commit.value().parts.size()) return success();
  const PartName& name = commit.value().parts[slot_.slot];
  auto part = fetch_part(store_, name.push, name.digest, settings_.folder, limits());
  if (!part) return without_lender(part.error());
  lenders_.push_back({decision, std::move(part).value()});
  return success();
}

// The newest commit lends, and the newest one of this tag. Only what stands lends: the collector may take the rest.
Result<> Pusher::find_lenders(const std::optional<SlotPart>& own) {
  TRY_ASSIGN(const auto steps, list_steps(store_, limits()));
  const auto latest = newest(steps);
  std::optional<DecisionName> of_tag;
  for (const CommittedStep& step : steps) {
    const bool is_later = !of_tag || of_tag->n < step.decision.n;
    if (!step.gone && step.decision.tag == image_.tag() && is_later) of_tag = step.decision;
  }
  if (latest) TRY(add_lender(latest->decision));
  if (of_tag && *of_tag != latest->decision) TRY(add_lender(*of_tag));
  if (own && io::fault_value("lender_uncommitted")) {
    TRY_ASSIGN(Part part, fetch_part(store_, own->listed.push, {}, settings_.folder, limits()));
    lenders_.push_back({{image_.tag(), 1}, std::move(part)});
  }
  return success();
}

PlacedChunk Pusher::use(const PushName& push, uint32_t pack, uint32_t offset, uint32_t length) {
  const auto [known, added] = index_of_push_.try_emplace(push, static_cast<uint32_t>(used_.size()));
  if (added) used_.push_back(push);
  return {known->second, pack, offset, length};
}

PlacedChunk Pusher::send_later(size_t index, uint64_t chunk, uint32_t length) {
  if (packs_.empty() || packs_.back().bytes + length > settings_.pack_bytes ||
      packs_.back().chunks == kMostPackChunks) {
    packs_.push_back({index, chunk, places_.size()});
  }
  const auto pack = static_cast<uint32_t>(packs_.size() - 1);
  const auto offset = static_cast<uint32_t>(packs_.back().bytes);
  packs_.back().bytes += length;
  ++packs_.back().chunks;
  return use(push_, pack, offset, length);
}

Result<std::optional<PlacedChunk>> Pusher::borrow(const io::Digest& digest, uint64_t length,
                                                  const std::vector<std::vector<Chunk>>& lent, size_t chunk) {
  for (size_t i = 0; i < lent.size(); ++i) {
    if (chunk >= lent[i].size()) continue;
    const Chunk& one = lent[i][chunk];
    if (one.digest != digest || one.length != length || one.codec != 0) continue;
    lenders_[i].used = true;
    return std::optional(use(lenders_[i].part.header().pushes[one.push].push, one.pack, one.offset, one.length));
  }
  TRY_ASSIGN(const auto known, journal_.find(digest));
  if (!known || known->length != length) return std::optional<PlacedChunk>();
  if (!arrived_.contains({known->push, known->pack}) && !io::fault_value("journal_trusted")) {
    return std::optional<PlacedChunk>();
  }
  unfinished_.insert(known->push);
  return std::optional(use(known->push, known->pack, known->offset, known->length));
}

Result<> Pusher::plan_file(size_t index) {
  const Entry& entry = image_.entries()[index];
  TRY_ASSIGN(const auto digests, digests_of(image_, index));
  std::vector<std::vector<Chunk>> lent(lenders_.size());  // at the same offsets of this path
  for (size_t i = 0; i < lenders_.size(); ++i) {
    const Part& part = lenders_[i].part;
    const auto found = part.find(entry.path);
    if (!found || part.entries()[*found].kind != Entry::Kind::file) continue;
    const Entry& theirs = part.entries()[*found];
    TRY_ASSIGN(lent[i], part.chunks(theirs.first_chunk, std::min(theirs.chunks(), entry.chunks())));
  }
  for (size_t chunk = 0; chunk < digests.size(); ++chunk) {
    const auto length = static_cast<uint32_t>(chunk_length(entry, chunk));
    TRY_ASSIGN(const auto borrowed, borrow(digests[chunk], length, lent, chunk));
    if (borrowed) borrowed_ += length;
    places_.push_back(borrowed ? *borrowed : send_later(index, chunk, length));
  }
  return success();
}

Result<> Pusher::plan() {
  used_ = {push_};
  index_of_push_ = {{push_, 0}};
  for (size_t index = 0; index < image_.entries().size(); ++index) {
    if (image_.entries()[index].kind == Entry::Kind::file) TRY(plan_file(index));
  }
  return success();
}

Result<std::vector<PackedChunk>> Pusher::chunks_of(const PlannedPack& planned, uint32_t pack) {
  std::vector<PackedChunk> chunks;
  size_t place = planned.place;
  uint64_t chunk = planned.chunk;
  for (size_t index = planned.entry; chunks.size() < planned.chunks; ++index, chunk = 0) {
    const Entry& entry = image_.entries()[index];
    if (entry.kind != Entry::Kind::file || entry.size == 0) continue;
    TRY_ASSIGN(const auto digests, digests_.of(index));
    for (; chunk < digests->size() && chunks.size() < planned.chunks; ++chunk, ++place) {
      const PlacedChunk& placed = places_[place];
      if (placed.push != 0 || placed.pack != pack) continue;
      chunks.push_back({index, chunk * kChunkBytes, {(*digests)[chunk], placed.offset, placed.length}});
    }
  }
  return chunks;
}

void Pusher::report(const std::string& object) const {
  settings_.progress({bytes_, borrowed_, sent_.load(std::memory_order_relaxed), object});
}

Result<> Pusher::send(size_t pack) {
  const auto number = static_cast<uint32_t>(pack);
  TRY_ASSIGN(auto chunks, chunks_of(packs_[pack], number));
  const auto throttle = [this](uint64_t bytes) {
    if (settings_.limit != nullptr) settings_.limit->take(bytes, settings_.stop);
  };
  PackContent content(image_, throttle, std::move(chunks));
  const std::string key = pack_key(push_, number);
  const auto within = io::RequestLimits::within(settings_.pack_time, settings_.stop);
  auto put = store_.put(key, content.content(), io::PutMode::make, within);
  if (!put && put.error().errno_value() == EEXIST) {  // a reply of ours was lost: nobody else has this name
    TRY_ASSIGN(const bool ours, io::holds(store_, key, content.content(), limits()));
    if (ours) put = success();
  }
  TRY(put);
  sent_ += packs_[pack].bytes;
  TRY(journal_.add(push_, number, content.chunks()));
  report(key);
  return success();
}

PartHeader Pusher::header() const {
  PartHeader header;
  header.push = push_;
  header.number = number_;
  header.host = slot_.host;
  header.mount = slot_.mount;
  header.attempt = image_.attempt();
  header.facts = image_.facts();
  for (const PushName& push : used_) header.pushes.push_back({push, {}});
  header.lenders.unfinished.assign(unfinished_.begin(), unfinished_.end());
  for (const Lender& lender : lenders_) {
    if (lender.used) header.lenders.commits.push_back(lender.decision);
  }
  return header;
}

Result<Part> Pusher::make_part() {
  TRY_ASSIGN(PartWriter writer, PartWriter::make(settings_.folder));
  size_t place = 0;
  for (size_t index = 0; index < image_.entries().size(); ++index) {
    TRY_ASSIGN(const auto digests, digests_of(image_, index));
    std::vector<Chunk> chunks;
    chunks.reserve(digests.size());
    for (const io::Digest& digest : digests) {
      const PlacedChunk& placed = places_[place++];
      chunks.push_back({digest, placed.push, placed.pack, placed.offset, placed.length});
    }
    TRY(writer.add(image_.entries()[index], chunks));
  }
  return writer.finish(header());
}

Result<> Pusher::put_part(const Part& part) {
  TRY_ASSIGN(const bool current, image_.is_current());
  if (!current && !io::fault_value("part_unchecked")) {
    return Error(ESTALE, image_.tag() + " has changed since it was read");
  }
  const std::string key = part_key(push_);
  auto put = store_.put(key, part.content(), io::PutMode::make, limits());
  if (put || put.error().errno_value() != EEXIST) return put;
  TRY_ASSIGN(const bool ours, io::holds(store_, key, part.content(), limits()));
  if (ours) return success();
  TRY(journal_.clear());
  return Error(EAGAIN, store_.url() + "/" + key + ": this push was ended, since nothing came of it for days");
}

Result<PushedPart> Pusher::run() {
  TRY(check_tag(image_.tag()));
  TRY(digest_content());
  TRY_ASSIGN(const TagParts listed, list_parts(store_, image_.tag(), limits()));
  TRY_ASSIGN(auto found, find_part(listed));
  if (found) {
    TRY(journal_.clear());
    return std::move(*found);
  }
  TRY(check_journal(listed));
  push_ = settings_.name(image_.tag(), slot_.slot);
  TRY(plan());
  report("");
  TRY(io::for_each_parallel(packs_.size(), std::max(1U, settings_.parallel), [&](size_t pack) { return send(pack); }));
  TRY_ASSIGN(const Part part, make_part());
  TRY(put_part(part));
  report(part_key(push_));
  TRY(journal_.clear());
  const PartName name{push_, number_, part.digest(), part.size()};
  return PushedPart{name, sent_, borrowed_, false, part.header().lenders};
}

}  // namespace

Result<io::Digest> content_of(const StepImage& image) {
  ContentDigest content;
  for (size_t index = 0; index < image.entries().size(); ++index) {
    TRY_ASSIGN(const auto digests, digests_of(image, index));
    content.add(image.entries()[index], digests);
  }
  return content.finish();
}

Result<PushedPart> push_part(io::ObjectStore& store, const Slot& slot, const StepImage& image, PushJournal& journal,
                             const PushSettings& settings) {
  return Pusher(store, slot, image, journal, settings).run();
}

}  // namespace ckptfs::meta::remote
