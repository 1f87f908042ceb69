#include "meta/remote/push.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "io/fault.h"
#include "io/log.h"
#include "io/parallel.h"
#include "meta/remote/file_content.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/part.h"
#include "meta/remote/slot_parts.h"

namespace ckptfs::meta::remote {
namespace {

constexpr const char* kPushKind = "push";
constexpr uint64_t kDigestsAtOnce = 16'384;  // chunks

// A step that is lost or damaged there holds up no other one: all is sent.
Result<> without_source(const Error& error) {
  if (!is_damage(error)) return error;
  log::warn("nothing is copied from a step: {}", error.message());
  return success();
}

// Of a copy in the store: what takes longer, or is not answered for so long, is sent.
constexpr std::chrono::minutes kCopyTime{30}, kCopySilence{5};
constexpr int kMostPasses = 2;

// Of this slot's save, by the store's clock.
Result<SaveFacts> save_there(io::ObjectStore& store, const Slot& slot, const StepImage& image, KnownParts& known,
                             const PushSettings& settings) {
  if (known.own_save) return *known.own_save;
  SaveFacts save = image.save();
  if (!save.life || !save.attempt.empty() || slot.slots == 1) {
    save.life.reset();
    return save;
  }
  const auto limits = io::RequestLimits::within(settings.time, settings.stop);
  TRY_ASSIGN(const ServerTime time, ask_time(store, settings.id(), settings.clock, limits));
  const auto least = time.there - time.after, most = time.there + std::chrono::seconds(1) - time.before;
  const auto ahead = std::chrono::duration_cast<Milliseconds>((least + most) / 2);
  save.life = save.life->by(ahead, std::chrono::duration_cast<Milliseconds>((most - least) / 2));
  known.own_save = save;
  return save;
}

// As PartHeader::content and PartHeader::saved.
struct ImageDigests {
  io::Digest content{}, saved{};
};

Result<ImageDigests> digests_of(const StepImage& image) {
  ContentDigest content;
  SavedDigest saved;
  for (size_t index = 0; index < image.entries().size(); ++index) {
    TRY_ASSIGN(const auto digests, digests_of(image, index));
    content.add(image.entries()[index], digests);
    saved.add(image.entries()[index], digests);
  }
  return ImageDigests{content.finish(), saved.finish()};
}

// A file that is to be there when the part is put.
struct PushedFile {
  size_t index = 0;  // in the image's entries
  io::Digest digest{};
  std::string copied_from;  // a key; empty: it is sent
  io::Upload upload{};      // of one that goes in pieces
  uint64_t piece = 0;       // bytes of each
  std::vector<std::string> tags{};
};

// A piece of a file's upload, to be sent.
struct PushedPiece {
  PushedFile* file = nullptr;
  uint32_t number = 1;
};

// One call of push_part().
class Pusher {
 public:
  Pusher(io::ObjectStore& store, const Slot& slot, const StepImage& image, PushJournal& journal, KnownParts& known,
         const PushSettings& settings)
      : store_(store),
        slot_(slot),
        image_(image),
        journal_(journal),
        known_(known),
        settings_(settings),
        digests_(image) {}

  Result<PushedPart> run();

 private:
  using Files = std::vector<PushedFile*>;

  io::RequestLimits limits() const { return io::RequestLimits::within(settings_.time, settings_.stop); }
  io::RequestLimits file_limits() const { return io::RequestLimits::within(settings_.file_time, settings_.stop); }
  io::RequestLimits copy_limits() const {
    io::RequestLimits limits = io::RequestLimits::within(kCopyTime, settings_.stop);
    limits.stall = kCopySilence;
    return limits;
  }
  const Entry& entry_of(const PushedFile& file) const { return image_.entries()[file.index]; }
  std::string key_of(const PushedFile& file) const { return file_key(push_, slot_.slots, entry_of(file).path); }
  Result<> for_each(const Files& files, unsigned parallel, const std::function<Result<>(PushedFile&)>& work) const {
    return io::for_each_parallel(files.size(), std::max(1U, parallel), [&](size_t i) { return work(*files[i]); });
  }
  Result<> look_at_image();
  Result<std::optional<PushedPart>> find_part(const TagParts& listed);
  bool is_of_this_save(const PartHeader& part) const;
  Result<bool> can_stay(const PartHeader& part);
  Result<> look_for_lead(const TagParts& listed);
  Result<bool> choose_push(const TagParts& listed);
  Result<> say_that_it_goes_on();
  Result<> find_sources();
  Result<> add_source(const DecisionName& decision);
  Result<> plan();
  Result<std::string> find_source(const Entry& file, const std::vector<io::Digest>& digests, const io::Digest& digest);
  Result<> copy_files(const Files& all);
  Result<> copy(PushedFile& file);
  Result<> send_large(const Files& files);
  Result<> begin_upload(PushedFile& file, std::vector<PushedPiece>& pieces);
  Result<> send_piece(const PushedPiece& piece);
  Result<> complete(PushedFile& file);
  Result<> send_small(PushedFile& file);
  Result<> send_files(const Files& all);
  Result<> bring_files();
  Result<> find_missing();
  Result<> bring_all();
  Result<> list_arrived();
  bool has_arrived(size_t index) const;
  Result<> forget_upload(const PushedFile& file, const Error& why);
  Result<> note_arrived(const PushedFile& file);
  FileContent content_of(const PushedFile& file, uint64_t offset, uint64_t size);
  Result<Part> make_part();
  Result<> put_part(const Part& part);
  PushedPart waiting() const { return {{}, {}, sent_, copied_, lead_.why_not}; }
  void report(const std::string& object) const;

  io::ObjectStore& store_;
  const Slot& slot_;
  const StepImage& image_;
  PushJournal& journal_;
  KnownParts& known_;
  const PushSettings& settings_;
  DigestsInOrder digests_;

  PushName push_;
  SaveFacts save_;
  Lead lead_;
  ImageDigests digests_of_image_;
  uint64_t bytes_ = 0;
  std::atomic<uint64_t> sent_ = 0, copied_ = 0;
  bool looked_for_sources_ = false;
  std::vector<Part> sources_;                // of commits that stand
  std::map<std::string, uint64_t> arrived_;  // sizes of the push's files that are there
  std::vector<PushedFile> files_;            // that are not there yet
  std::atomic<int64_t> said_at_ = 0;         // that it goes on: seconds of the steady clock
  std::atomic<uint64_t> not_copied_ = 0;
};

Result<> Pusher::look_at_image() {
  TRY_ASSIGN(digests_of_image_, digests_of(image_));
  const PushName any{image_.tag(), slot_.slot, std::string(16, '0')};
  for (const Entry& entry : image_.entries()) {
    bytes_ += entry.size;
    if (entry.kind == Entry::Kind::file) TRY(store_.check_fits(file_key(any, slot_.slots, entry.path)));
  }
  return success();
}

// The same files are judged otherwise: somebody has said that the step is whole.
bool is_whole_now(const formats::CompletenessFacts& before, const formats::CompletenessFacts& now) {
  return formats::is_whole(now.own.completeness) && !formats::is_whole(before.own.completeness);
}

// Is it in a commit that stands, or can it still be in one?
Result<bool> Pusher::can_stay(const PartHeader& part) {
  TRY_ASSIGN(const Decided decided, known_.decided(store_, part.decision, limits()));
  if (decided == Decided::voided) return false;
  if (decided == Decided::nothing) {
    if (!save_.attempt.empty() && part.save.attempt != save_.attempt) return false;
    const bool leads = slot_.slot == 0 || !lead_.decision || *lead_.decision == part.decision;
    return leads && !is_whole_now(part.facts, image_.facts());
  }
  if (settings_.again) return false;
  TRY_ASSIGN(const bool gone, io::is_listed(store_, gone_key(part.decision), limits()));
  if (gone || lead_.decision) return false;  // slot 0 has pushed the save again
  TRY_ASSIGN(const Commit commit, fetch_commit(store_, part.decision, limits()));
  return slot_.slot < commit.parts.size() && commit.parts[slot_.slot].push == part.push;
}

// Two saves may hold the same bytes.
bool Pusher::is_of_this_save(const PartHeader& part) const {
  return part.order == image_.order() && part.saved == digests_of_image_.saved;
}

// Has the slot a part of these files that can stay?
Result<std::optional<PushedPart>> Pusher::find_part(const TagParts& listed) {
  for (const ListedPart& one : listed.parts) {
    if (one.push.slot != slot_.slot) continue;
    TRY_ASSIGN(const PartHeader* const header, known_.header(store_, one.push, limits()));
    if (header == nullptr || !is_of_this_save(*header)) continue;
    TRY_ASSIGN(const bool stays, can_stay(*header));
    if (!stays) continue;
    TRY_ASSIGN(const Part part, fetch_part(store_, one.push, {}, settings_.folder, limits()));
    return std::optional(PushedPart{part.name(), header->decision, 0, 0, ""});
  }
  return std::optional<PushedPart>();
}

// Slot 0 leads itself.
Result<> Pusher::look_for_lead(const TagParts& listed) {
  TRY_SET(save_, save_there(store_, slot_, image_, known_, settings_));
  if (slot_.slot == 0) return success();
  TRY_SET(lead_, find_lead(store_, listed, save_, known_, limits()));
  return success();
}

// The journal's push goes on if it holds the same, was not ended, and has and had no part: a part whose reply was lost
// was found before. What the journal knows may be gone: a store may be restored from a copy. What is not listed is sent
// again. False: a push of these files was given up, and nothing tells that another one would go better.
Result<bool> Pusher::choose_push(const TagParts& listed) {
  const auto before = journal_.push();
  const bool is_same = before && journal_.content() == digests_of_image_.content;
  if (is_same && listed.is_ended(*before) && slot_.slot != 0 && !lead_.decision) return false;
  if (!is_same || listed.is_ended(*before) || listed.has(*before)) {
    push_ = {image_.tag(), slot_.slot, settings_.id()};
    TRY(journal_.begin(push_, digests_of_image_.content));
    TRY(say_that_it_goes_on());
    return true;
  }
  push_ = *before;
  TRY(list_arrived());
  return true;
}

Result<> Pusher::list_arrived() {
  arrived_.clear();
  const auto note = [this](const io::ObjectInfo& object) -> Result<> {
    arrived_.emplace(object.key, object.size);
    return success();
  };
  return io::for_each_object(store_, push_.folder(), note, limits());
}

// In its whole length.
bool Pusher::has_arrived(size_t index) const {
  const Entry& entry = image_.entries()[index];
  const auto there = arrived_.find(file_key(push_, slot_.slots, entry.path));
  return there != arrived_.end() && there->second == entry.size;
}

// At the begin, and each day.
Result<> Pusher::say_that_it_goes_on() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  int64_t before = said_at_;
  if (before != 0 && seconds - before < a_day().count()) return success();
  if (!said_at_.compare_exchange_strong(before, seconds)) return success();  // another thread says it
  nlohmann::json object = new_document(kPushKind);
  object["host"] = slot_.host;
  const std::string text = checked_line(object);
  return store_.put(push_key(push_), io::content_of(text), io::PutMode::replace, limits());
}

Result<> Pusher::add_source(const DecisionName& decision) {
  const auto commit = fetch_commit(store_, decision, limits());
  if (!commit) return without_source(commit.error());
  if (slot_.slot >= commit.value().parts.size()) return success();
  const PartName& name = commit.value().parts[slot_.slot];
  auto part = fetch_part(store_, name.push, name.digest, settings_.folder, limits());
  if (!part) return without_source(part.error());
  sources_.push_back(std::move(part).value());
  return success();
}

// The newest commit, and the newest one of this tag. Asked for when the first file is to be sent.
Result<> Pusher::find_sources() {
  if (std::exchange(looked_for_sources_, true)) return success();
  TRY_ASSIGN(const auto steps, list_steps(store_, limits()));
  const auto latest = newest(steps), of_tag = newest_of_tag(steps, image_.tag());
  if (latest) TRY(add_source(latest->decision));
  if (of_tag && !of_tag->gone && of_tag->decision != latest->decision) TRY(add_source(of_tag->decision));
  return success();
}

// The key of an object that holds the same; empty: none is known. Only what is at the same path is asked for.
Result<std::string> Pusher::find_source(const Entry& file, const std::vector<io::Digest>& digests,
                                        const io::Digest& digest) {
  TRY(find_sources());
  for (const Part& source : sources_) {
    const auto found = source.find(file.path);
    if (!found) continue;
    const Entry& theirs = source.entries()[*found];
    if (theirs.kind != Entry::Kind::file || theirs.size != file.size) continue;
    bool same = true;
    for (uint64_t at = 0; same && at < digests.size(); at += kDigestsAtOnce) {
      const auto some = std::span(digests).subspan(at, std::min<uint64_t>(kDigestsAtOnce, digests.size() - at));
      TRY_ASSIGN(const auto chunks, source.chunks(theirs, at, some.size()));
      same = std::ranges::equal(chunks, some, {}, &Chunk::digest);
    }
    if (same) return source.header().key_of(theirs);
  }
  const auto before = journal_.file_before(file.path, digest);
  return before ? file_key(*before, slot_.slots, file.path) : std::string();
}

Result<> Pusher::plan() {
  const bool trusts = io::fault_value("journal_trusted").has_value();
  for (size_t index = 0; index < image_.entries().size(); ++index) {
    const Entry& entry = image_.entries()[index];
    if (entry.kind != Entry::Kind::file) continue;
    TRY_ASSIGN(const auto digests, digests_of(image_, index));
    PushedFile file{index, io::digest_of(std::as_bytes(std::span(digests))), ""};
    if ((trusts || has_arrived(index)) && journal_.has_file(entry.path)) {
      copied_ += entry.size;
      continue;
    }
    TRY_ASSIGN(file.copied_from, find_source(entry, digests, file.digest));
    files_.push_back(std::move(file));
  }
  return success();
}

void Pusher::report(const std::string& object) const { settings_.progress({bytes_, copied_, sent_, object}); }

Result<> Pusher::note_arrived(const PushedFile& file) {
  TRY(journal_.add_file(entry_of(file).path, file.digest));
  report(key_of(file));
  return success();
}

Result<> Pusher::copy(PushedFile& file) {
  TRY(say_that_it_goes_on());
  auto copied = store_.copy(file.copied_from, key_of(file), entry_of(file).size, copy_limits());
  if (!copied && copied.error().errno_value() == ECANCELED) return copied;
  if (!copied) {
    if (++not_copied_ == 1) log::warn("what could be copied there is sent: {}", copied.error().message());
    file.copied_from.clear();
    return success();
  }
  copied_ += entry_of(file).size;
  return note_arrived(file);
}

Result<> Pusher::copy_files(const Files& all) {
  Files files;
  for (PushedFile* const file : all) {
    if (!file->copied_from.empty()) files.push_back(file);
  }
  return for_each(files, settings_.parallel, [this](PushedFile& file) { return copy(file); });
}

FileContent Pusher::content_of(const PushedFile& file, uint64_t offset, uint64_t size) {
  const auto throttle = [this](uint64_t bytes) {
    if (settings_.limit != nullptr) settings_.limit->take(bytes, settings_.stop);
  };
  return {image_, digests_, throttle, file.index, offset, size};
}

// The next call begins the upload anew.
Result<> Pusher::forget_upload(const PushedFile& file, const Error& why) {
  TRY(journal_.add_upload(entry_of(file).path, "", 0));
  return Error(EAGAIN, why.message() + ": its upload is gone there, or lacks what was sent; it is sent anew");
}

Result<> Pusher::begin_upload(PushedFile& file, std::vector<PushedPiece>& pieces) {
  const Entry& entry = entry_of(file);
  const uint64_t least = (entry.size / io::kMostPieces + kChunkBytes) / kChunkBytes * kChunkBytes;
  file.piece = std::max(settings_.piece_bytes, least);
  file.tags.resize((entry.size + file.piece - 1) / file.piece);
  JournalledUpload known = journal_.upload(entry.path);
  if (known.id.empty() || known.piece_bytes != file.piece) {
    known = {};
    TRY_ASSIGN(file.upload, store_.begin_upload(key_of(file), limits()));
    TRY(journal_.add_upload(entry.path, file.upload.id, file.piece));
  } else {
    file.upload = {key_of(file), known.id, true};
  }
  for (uint32_t number = 1; number <= file.tags.size(); ++number) {
    const auto arrived = known.pieces.find(number);
    if (arrived == known.pieces.end()) {
      pieces.push_back({&file, number});
    } else {
      file.tags[number - 1] = arrived->second;
      copied_ += std::min(file.piece, entry.size - (number - 1) * file.piece);
    }
  }
  return success();
}

Result<> Pusher::send_piece(const PushedPiece& piece) {
  TRY(say_that_it_goes_on());
  PushedFile& file = *piece.file;
  const uint64_t offset = (piece.number - 1) * file.piece, size = std::min(file.piece, entry_of(file).size - offset);
  FileContent content = content_of(file, offset, size);
  auto put = store_.put_piece(file.upload, piece.number, offset, content.content(), file_limits());
  if (!put && put.error().errno_value() == ENOENT) return forget_upload(file, put.error());
  TRY(put);
  TRY(journal_.add_piece(entry_of(file).path, piece.number, put.value()));
  file.tags[piece.number - 1] = std::move(put).value();
  sent_ += size;
  report(key_of(file));
  return success();
}

Result<> Pusher::complete(PushedFile& file) {
  const auto done = store_.complete_upload(file.upload, entry_of(file).size, file.tags, file_limits());
  if (!done && done.error().errno_value() == ENOENT) return forget_upload(file, done.error());
  TRY(done);
  return note_arrived(file);
}

// Pieces of all files together, so that no connection waits for the last piece of a file.
Result<> Pusher::send_large(const Files& files) {
  std::vector<PushedPiece> pieces;
  for (PushedFile* const file : files) TRY(begin_upload(*file, pieces));
  TRY(io::for_each_parallel(pieces.size(), std::max(1U, settings_.parallel),
                            [&](size_t i) { return send_piece(pieces[i]); }));
  return for_each(files, settings_.parallel, [this](PushedFile& file) { return complete(file); });
}

Result<> Pusher::send_small(PushedFile& file) {
  TRY(say_that_it_goes_on());
  const uint64_t size = entry_of(file).size;
  FileContent content = content_of(file, 0, size);
  TRY(store_.put(key_of(file), content.content(), io::PutMode::replace, file_limits()));
  sent_ += size;
  return note_arrived(file);
}

Result<> Pusher::send_files(const Files& all) {
  Files large, small;
  for (PushedFile* const file : all) {
    if (!file->copied_from.empty()) continue;
    (entry_of(*file).size > settings_.piece_bytes ? large : small).push_back(file);
  }
  TRY(send_large(large));
  return for_each(small, settings_.parallel_small, [this](PushedFile& file) { return send_small(file); });
}

// All files, and at last those that say that a model is there.
Result<> Pusher::bring_files() {
  Files first, last;
  for (PushedFile& file : files_) (comes_last(entry_of(file).path) ? last : first).push_back(&file);
  for (const Files* const files : {&first, &last}) {
    TRY(copy_files(*files));
    TRY(send_files(*files));
  }
  if (not_copied_ > 1) log::warn("{} files could not be copied there, and are sent", not_copied_.load());
  return success();
}

// The files of the image that are not there in their whole length, by a list: what was copied may have been cut short
// where it was copied from, and the store may have been restored from a copy meanwhile.
Result<> Pusher::find_missing() {
  TRY(list_arrived());
  files_.clear();
  for (size_t index = 0; index < image_.entries().size(); ++index) {
    if (image_.entries()[index].kind != Entry::Kind::file || has_arrived(index)) continue;
    TRY_ASSIGN(const auto digests, digests_of(image_, index));
    files_.push_back({index, io::digest_of(std::as_bytes(std::span(digests))), ""});
  }
  return success();
}

Result<> Pusher::bring_all() {
  for (int round = 1; round <= kMostPasses; ++round) {
    TRY(bring_files());
    if (io::fault_value("journal_trusted")) return success();
    TRY(find_missing());
    if (files_.empty()) return success();
    for (const PushedFile& file : files_) TRY(journal_.add_upload(entry_of(file).path, "", 0));
    log::warn("{}/{}: {} files of {} are not there as they were sent", store_.url(), push_.folder(), files_.size(),
              image_.tag());
  }
  return Error(EAGAIN, store_.url() + "/" + key_of(files_.front()) + ": it is not there as it was sent");
}

Result<Part> Pusher::make_part() {
  TRY_ASSIGN(PartWriter writer, PartWriter::make(settings_.folder));
  for (size_t index = 0; index < image_.entries().size(); ++index) {
    TRY_ASSIGN(const auto digests, digests_of(image_, index));
    TRY(writer.add(image_.entries()[index], digests));
  }
  PartHeader header;
  header.push = push_;
  header.slots = slot_.slots;
  header.decision = slot_.slot == 0 ? DecisionName{image_.order(), image_.tag(), push_.id} : *lead_.decision;
  header.order = image_.order();
  header.save = save_;
  header.host = slot_.host;
  header.mount = slot_.mount;
  header.facts = image_.facts();
  return writer.finish(std::move(header));
}

Result<> Pusher::put_part(const Part& part) {
  TRY_ASSIGN(const bool current, image_.is_current());
  if (!current) {
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
  TRY(look_at_image());
  TRY_ASSIGN(const TagParts listed, list_parts(store_, image_.tag(), limits()));
  TRY(look_for_lead(listed));
  TRY_ASSIGN(auto found, find_part(listed));
  if (found) {
    TRY(journal_.clear());
    return std::move(*found);
  }
  TRY_ASSIGN(const bool goes_on, choose_push(listed));
  if (!goes_on) return waiting();
  TRY(plan());
  report("");
  TRY(bring_all());
  if (slot_.slot != 0 && !lead_.decision) return waiting();
  TRY_ASSIGN(const Part part, make_part());
  TRY(put_part(part));
  report(part_key(push_));
  TRY(journal_.clear());
  return PushedPart{part.name(), part.header().decision, sent_, copied_, ""};
}

}  // namespace

Result<io::Digest> saved_of(const StepImage& image) {
  TRY_ASSIGN(const ImageDigests digests, digests_of(image));
  return digests.saved;
}

Result<bool> is_awaited(io::ObjectStore& store, const Slot& slot, const StepImage& image, KnownParts& known,
                        const PushSettings& settings) {
  const auto limits = io::RequestLimits::within(settings.time, settings.stop);
  TRY_ASSIGN(const TagParts listed, list_parts(store, image.tag(), limits));
  TRY_ASSIGN(const SaveFacts save, save_there(store, slot, image, known, settings));
  TRY_ASSIGN(const Lead lead, find_lead(store, listed, save, known, limits));
  return lead.decision.has_value();
}

Result<PushedPart> push_part(io::ObjectStore& store, const Slot& slot, const StepImage& image, PushJournal& journal,
                             KnownParts& known, const PushSettings& settings) {
  return Pusher(store, slot, image, journal, known, settings).run();
}

}  // namespace ckptfs::meta::remote
