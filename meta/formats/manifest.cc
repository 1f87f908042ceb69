#include "meta/formats/manifest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/json.h"
#include "meta/formats/name_parts.h"
#include "meta/names.h"

namespace ckptfs::meta::formats {
namespace {

using nlohmann::json;

constexpr std::string_view kManifestPrefix = "ckptfs.";
constexpr std::string_view kManifestSuffix = ".json";
constexpr int kManifestFormat = 1;
constexpr size_t kLongestHost = 256;

using Sizes = std::map<std::string_view, uint64_t>;  // of the files of a step, by their paths

// Why the part of a rank is not whole; empty: it is.
struct WrongRank {
  std::string reason;
  std::string broken;  // likewise, if files that are not here were there
};

// Compares the files with what the manifest says. `missing`: takes what is not there.
void check_files(const RankManifest& manifest, const Sizes& sizes, WrongRank& wrong, ShareCheck* missing) {
  for (const StepFiles::File& named : manifest.files) {
    const auto found = sizes.find(named.path);
    if (found != sizes.end() && found->second == named.size) continue;
    std::string reason = named.path + ": it is not there";
    if (found != sizes.end()) {
      reason = named.path + ": it has " + std::to_string(found->second) + " bytes, and should have " +
               std::to_string(named.size);
      if (wrong.broken.empty()) wrong.broken = reason;
    } else if (missing != nullptr) {
      missing->add_missing({named.path, named.size, named.size});
    }
    if (wrong.reason.empty()) wrong.reason = std::move(reason);
  }
}

constexpr size_t kMostFilesOfRank = size_t{1} << 18;  // in one manifest
constexpr io::JsonBounds kManifestBounds{.bytes = kMostManifest, .values = io::kAnyNumber, .text = 1 << 16, .depth = 8};

// Depth 1 is the manifest, 2 its list of files or the timing, 3 a file or the timing's stages, 4 a file's digests.
class ManifestReader : public io::JsonVisitor {
 public:
  bool string(string_t& text) override {
    if (depth_ == 1 && key_ == "attempt") attempt_ = text;
    if (in_file() && key_ == "name") name_ = text;
    if (in_digests_) return add_digest(text);
    if (depth_ == 2 && in_timing_ && key_ == "host") timing_.host = text.substr(0, kLongestHost);
    return true;
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (depth_ == 1 && (key_ == "format" || key_ == "rank" || key_ == "world_size")) numbers_[key_] = number;
    if (in_file() && key_ == "size") size_ = number;
    if (in_file() && key_ == "chunk") digests().chunk = number;
    return seconds(static_cast<double>(number));
  }
  bool number_float(number_float_t number, const string_t&) override { return seconds(number); }

  Result<RankManifest> take() {
    const auto format = numbers_.find("format"), rank = numbers_.find("rank"), world = numbers_.find("world_size");
    const auto none = numbers_.end();
    if (format != none && format->second != kManifestFormat) {
      return Error(EBADMSG,
                   "a manifest of format " + std::to_string(format->second) + ", which this ckptfs does not know");
    }
    if (format == none || rank == none || world == none || !attempt_ || !has_files_) {
      return Error(EBADMSG, "no manifest: it lacks what each has");
    }
    if (world->second == 0 || world->second > kLargestWorld || rank->second >= world->second) {
      return Error(EBADMSG, "rank " + std::to_string(rank->second) + " of " + std::to_string(world->second) +
                                " there cannot be");
    }
    return RankManifest{*attempt_,
                        static_cast<unsigned>(rank->second),
                        static_cast<unsigned>(world->second),
                        std::move(files_),
                        has_timing_ ? std::optional(std::move(timing_)) : std::nullopt,
                        std::move(digests_)};
  }

 private:
  bool in_file() const { return depth_ == 3 && in_files_; }
  FileDigests& digests() { return of_file_ ? *of_file_ : of_file_.emplace(); }
  bool add_digest(const std::string& text) {
    const auto digest = io::digest_from_hex(text);
    if (digest) digests().digests.push_back(*digest);
    return digest || fails(Error(EBADMSG, "a digest that is none"));
  }
  // Takes the digests of a file that has ended.
  bool take_digests() {
    if (!of_file_) return true;
    const auto [chunk, digests] = std::pair(of_file_->chunk, of_file_->digests.size());
    if (chunk < kLeastChunk || !std::has_single_bit(chunk)) {
      return fails(Error(EBADMSG, *name_ + ": its digests are of chunks of " + std::to_string(chunk) + " bytes"));
    }
    if (digests != chunks_of(*size_, chunk)) {
      return fails(Error(EBADMSG, *name_ + ": it has " + std::to_string(digests) + " digests, and should have " +
                                      std::to_string(chunks_of(*size_, chunk))));
    }
    digests_[*name_] = std::move(*of_file_);
    return true;
  }
  // Takes a number of the timing. What is no time is left out: the manifest serves without it.
  bool seconds(double number) {
    if (!in_timing_ || !std::isfinite(number) || number < 0) return true;
    if (depth_ == 2 && key_ == "begun") timing_.begun = number;
    if (depth_ == 2 && key_ == "durable") timing_.durable = number;
    if (depth_ == 3 && in_stages_ && timing_.stages.size() < kMostStages && is_stage_name(key_))
      timing_.stages[key_] = number;
    return true;
  }
  bool begin(bool object) override {
    if (depth_ == 1) return object || fails(Error(EBADMSG, "it is no object"));
    if (depth_ == 2) in_files_ = !object && key_ == "files";
    if (depth_ == 2 && object && key_ == "timing") in_timing_ = has_timing_ = true;
    if (depth_ == 3) in_stages_ = in_timing_ && object && key_ == "stages";
    has_files_ = has_files_ || in_files_;
    if (depth_ == 3) name_.reset(), size_.reset(), of_file_.reset();
    in_digests_ = depth_ == 4 && in_files_ && !object && key_ == "digests";
    if (in_digests_) digests();  // an empty list is a list
    return true;
  }
  bool end() override {
    in_digests_ = false;
    if (depth_ == 2) in_timing_ = false;
    if (depth_ != 3 || !in_files_) return true;
    if (!name_ || !size_) return fails(Error(EBADMSG, "a file without a name or a size"));
    if (files_.size() == kMostFilesOfRank) return fails(Error(EFBIG, "it names more files than any rank writes"));
    files_.push_back({*name_, *size_});
    return take_digests();
  }

  std::map<std::string, uint64_t> numbers_;
  std::optional<std::string> attempt_;
  bool has_files_ = false;
  bool in_files_ = false;
  bool has_timing_ = false;
  bool in_timing_ = false;
  bool in_stages_ = false;
  SaveTiming timing_;
  std::optional<std::string> name_;
  std::optional<uint64_t> size_;
  bool in_digests_ = false;
  std::optional<FileDigests> of_file_;  // of the file that is being read
  std::map<std::string, FileDigests> digests_;
  std::vector<StepFiles::File> files_;
};

class TimesOfRanks {
 public:
  void add(const RankManifest& manifest) {
    if (!manifest.timing) return;
    const SaveTiming& timing = *manifest.timing;
    if (!times_ || timing.durable > last_) {
      if (!times_) times_.emplace();
      times_->slowest = manifest.rank;
      times_->host = timing.host;
      last_ = timing.durable;
    }
    first_ = std::min(first_, timing.begun);
    times_->seconds = std::max(last_ - first_, 0.0);
    for (const auto& [stage, seconds] : timing.stages) {
      if (times_->longest.size() >= kMostStages && !times_->longest.contains(stage)) continue;
      double& longest = times_->longest[stage];
      longest = std::max(longest, seconds);
    }
  }
  std::optional<RankTimes> take() { return std::move(times_); }

 private:
  std::optional<RankTimes> times_;
  double first_ = std::numeric_limits<double>::infinity();
  double last_ = 0;
};

}  // namespace

Result<> check_times(const RankTimes& times) {
  const auto is_time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  if (times.slowest >= kLargestWorld)
    return Error(EINVAL, "rank " + std::to_string(times.slowest) + " there cannot be");
  if (times.host.size() > kLongestHost) return Error(EINVAL, "the name of its machine is too long");
  if (times.longest.size() > kMostStages) return Error(EINVAL, "more stages than there can be");
  if (!is_time(times.seconds)) return Error(EINVAL, "its seconds are no length of time");
  for (const auto& [stage, seconds] : times.longest) {
    if (!is_stage_name(stage)) return Error(EINVAL, "a stage's name has up to 32 lower-case letters, digits and _");
    if (!is_time(seconds)) return Error(EINVAL, stage + ": its seconds are no length of time");
  }
  return success();
}

bool is_stage_name(std::string_view name) {
  constexpr size_t kLongest = 32;
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, allowed);
}

std::string manifest_name(unsigned rank) {
  return std::string(kManifestPrefix) + checkpoint_rank_name(rank) + std::string(kManifestSuffix);
}

std::optional<unsigned> rank_of_manifest(std::string_view name) {
  return skip(name, kManifestPrefix) && drop(name, kManifestSuffix) ? rank_of(name) : std::nullopt;
}

std::string manifest_text(const RankManifest& manifest) {
  json files = json::array();
  for (const StepFiles::File& file : manifest.files) {
    json& one = files.emplace_back(json{{"name", file.path}, {"size", file.size}});
    const auto known = manifest.digests.find(file.path);
    if (known == manifest.digests.end()) continue;
    one["chunk"] = known->second.chunk;
    json& digests = one["digests"] = json::array();
    for (const io::Digest& digest : known->second.digests) digests.push_back(io::hex_of(digest));
  }
  json whole = {{"format", kManifestFormat},
                {"attempt", manifest.attempt},
                {"rank", manifest.rank},
                {"world_size", manifest.world_size},
                {"files", std::move(files)}};
  if (manifest.timing) {
    whole["timing"] = {{"begun", manifest.timing->begun},
                       {"durable", manifest.timing->durable},
                       {"host", manifest.timing->host},
                       {"stages", manifest.timing->stages}};
  }
  return whole.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<RankManifest> parse_manifest(const std::string& text) {
  ManifestReader reader;
  TRY(with_name("no manifest", io::read_json(text, kManifestBounds, reader)));
  return reader.take();
}

std::optional<unsigned> world_size_of(const StepFiles& files) {
  const auto first = index_of(files.list(), manifest_name(0));
  if (!first) return std::nullopt;
  const auto text = files.read(*first, kMostManifest);
  const auto manifest = text ? parse_manifest(text.value()) : text.error();
  return manifest ? std::optional(manifest.value().world_size) : std::nullopt;
}

Attendance check_manifests(const StepFiles& files, std::optional<unsigned> world_size) {
  Sizes sizes;
  for (const StepFiles::File& file : files.list()) sizes.emplace(file.path, file.size);
  std::map<unsigned, WrongRank> wrong;  // of the ranks whose manifests exist
  std::string attempt;
  TimesOfRanks times;
  Attendance attendance;
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    const auto rank = rank_of_manifest(path);
    if (!rank) continue;
    const auto text = files.read(index, kMostManifest);
    const auto manifest = text ? parse_manifest(text.value()) : text.error();
    WrongRank& of_rank = wrong[*rank];
    if (!manifest) {
      of_rank.reason = of_rank.broken = path + ": " + manifest.error().message();
      continue;
    }
    times.add(manifest.value());
    const unsigned ranks = manifest.value().world_size;
    if (attempt.empty()) attempt = manifest.value().attempt;
    if (!world_size) world_size = ranks;
    if (manifest.value().attempt != attempt || ranks != *world_size || manifest.value().rank != *rank) {
      of_rank.reason = of_rank.broken = path + ": it is of another attempt to save this step, or of another rank";
    }
    check_files(manifest.value(), sizes, of_rank, *rank < *world_size ? &attendance.share : nullptr);
  }
  attendance.times = times.take();
  if (!world_size) attendance.reason = attendance.share.broken = "no manifest of a rank can be read";
  for (unsigned rank = 0; rank < world_size.value_or(0); ++rank) {
    const auto found = wrong.find(rank);
    if (found != wrong.end() && found->second.reason.empty()) continue;
    attendance.missing.push_back(rank);
    if (found == wrong.end()) attendance.share.add_missing({manifest_name(rank)});
    if (found != wrong.end()) attendance.share.add_broken(found->second.broken);
    if (!attendance.reason.empty()) continue;
    attendance.reason = found == wrong.end() ? manifest_name(rank) + " is not there" : found->second.reason;
  }
  return attendance;
}

}  // namespace ckptfs::meta::formats
