#include "meta/formats/completeness_facts.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "meta/formats/checkpoint.h"
#include "meta/formats/dcp.h"
#include "meta/formats/deepspeed.h"
#include "meta/formats/deepspeed_files.h"
#include "meta/formats/manifest.h"
#include "meta/formats/step_names.h"
#include "meta/formats/thinning.h"

namespace ckptfs::meta::formats {
namespace {

using Json = nlohmann::json;
using Facts = std::vector<const CompletenessFacts*>;

ShareCheck check_states(const StepFiles& files, const TensorMap& map, const StepNames& names) {
  if (const auto folder = deepspeed_folder(files)) return check_deepspeed(files, *folder);
  ShareCheck share;
  add_problems(map, share, false);
  if (names.deepspeed()) share.add_unclear("DeepSpeed's files lie in a folder that is not read");
  if (names.deepspeed() || !names.has(FileRole::dcp_metadata)) return share;
  ShareCheck demanded = check_dcp(files);
  share.missing = std::move(demanded.missing);
  share.add_broken(demanded.broken);
  share.add_unclear(demanded.unclear);
  return share;
}

// A step that was not read in full.
CompletenessFacts refused_facts(CompletenessJudgement own, const std::string& reason) {
  const ShareCheck unclear{{}, {}, reason};
  return {std::move(own), std::nullopt, unclear, unclear, unclear};
}

// The name by which a demanded file is looked for. DeepSpeed puts "bf16_" before the names of some of its files.
std::string looked_for(std::string_view path) {
  const size_t name_at = path.rfind('/') + 1;
  const auto states = parse_states_name(path.substr(name_at));
  if (!states || !states->rank) return std::string(path);
  const char* const kind = states->kind == StatesName::Kind::model ? "model" : "optim";
  return std::string(path.substr(0, name_at)) + kind + " " + std::to_string(*states->rank) + " " +
         std::to_string(states->model_rank);
}

// The files of all machines, and what is demanded of them.
class Together {
 public:
  Together(const Facts& facts, const std::vector<StepFiles::File>& files) : facts_(facts) {
    for (const StepFiles::File& file : files) sizes_.emplace(looked_for(file.path), file.size);
  }

  bool is_thinned() const {
    return std::ranges::any_of(facts_, [](const auto* one) { return one->thinned.has_value(); });
  }
  CompletenessJudgement judge_thinned_step() const {
    const auto thinned = [](const CompletenessFacts& one) { return one.thinned.value_or(ShareCheck()); };
    return judgement_of(all(thinned), Completeness::weights);
  }
  CompletenessJudgement judge(ShareCheck CompletenessFacts::*which) const {
    return judgement_of(all([which](const CompletenessFacts& one) -> const ShareCheck& { return one.*which; }));
  }

 private:
  // What is wrong together: a file that one machine lacks another may have.
  ShareCheck all(const auto& check_of) const {
    ShareCheck all;
    std::string wrong;
    for (const CompletenessFacts* const one : facts_) {
      const ShareCheck& check = check_of(*one);
      all.add_broken(check.broken);
      all.add_unclear(check.unclear);
      for (auto file = check.missing.begin(); wrong.empty() && file != check.missing.end(); ++file)
        wrong = wrong_with_demanded(*file);
    }
    all.add_broken(wrong);
    return all;
  }

  std::string wrong_with_demanded(const MissingFile& file) const {
    const auto found = sizes_.find(looked_for(file.path));
    if (found == sizes_.end()) return file.path + " is not there";
    if (found->second >= file.least && found->second <= file.most) return {};
    return file.path + ": it has " + std::to_string(found->second) + " bytes, and should have " +
           std::to_string(found->second < file.least ? file.least : file.most);
  }

  const Facts& facts_;
  std::map<std::string, uint64_t> sizes_;
};

constexpr std::array<const char*, 4> kJudgements{"complete", "incomplete", "unknown", "weights"};

Json json_of(const ShareCheck& share) {
  Json json = Json::object();
  for (const MissingFile& file : share.missing) json["missing"].push_back({file.path, file.least, file.most});
  if (!share.broken.empty()) json["broken"] = share.broken;
  if (!share.unclear.empty()) json["unclear"] = share.unclear;
  return json;
}

Error wrong_facts(const std::string& what) { return Error(EBADMSG, "facts for completeness: " + what); }

// An absent text is an empty one.
Result<std::string> text_in(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return std::string();
  const auto* const text = found->get_ptr<const std::string*>();
  return text != nullptr ? Result<std::string>(*text) : wrong_facts(std::string(key) + " is no text");
}

Result<MissingFile> missing_of(const Json& json) {
  const bool fits = json.is_array() && json.size() == 3 && json[0].is_string() && json[1].is_number_unsigned() &&
                    json[2].is_number_unsigned();
  if (!fits) return wrong_facts("a missing file is a list of its path and two lengths");
  return MissingFile{json[0].get<std::string>(), json[1].get<uint64_t>(), json[2].get<uint64_t>()};
}

Result<ShareCheck> share_in(const Json& json, const char* key) {
  ShareCheck share;
  const auto found = json.find(key);
  if (found == json.end()) return share;
  if (!found->is_object()) return wrong_facts(std::string(key) + " is no object");
  TRY_ASSIGN(share.broken, text_in(*found, "broken"));
  TRY_ASSIGN(share.unclear, text_in(*found, "unclear"));
  const auto missing = found->find("missing");
  if (missing == found->end()) return share;
  if (!missing->is_array() || missing->size() > kMostMissing) return wrong_facts("no list of missing files");
  share.missing.reserve(missing->size());
  for (const auto& one : *missing) TRY_SET(share.missing.emplace_back(), missing_of(one));
  return share;
}

}  // namespace

CompletenessFacts completeness_facts(const StepFiles& files, const TensorMap& map) {
  CompletenessFacts facts;
  facts.own = judge_completeness(files, map);
  if (files.refused()) return refused_facts(facts.own, files.refused()->message());
  facts.thinned = check_thinned(files);
  const StepNames names = names_of(files.list());
  // A Trainer's state may lie elsewhere, and makes more of the files count.
  const bool whole = facts.own.completeness == Completeness::complete && names.trainer_state();
  if (whole || facts.own.completeness == Completeness::weights) return facts;
  if (names.manifests()) facts.manifests = check_manifests(files).share;
  facts.states = check_states(files, map, names);
  facts.trainer = check_trainer_ends(files);
  if (files.refused()) return refused_facts(facts.own, files.refused()->message());
  return facts;
}

CompletenessJudgement judge_together(const Facts& facts, const std::vector<StepFiles::File>& files) {
  if (facts.size() == 1) return facts.front()->own;
  const Together together(facts, files);
  if (together.is_thinned()) return together.judge_thinned_step();
  return judge_by_names(names_of(files),
                        {.manifests = [&] { return together.judge(&CompletenessFacts::manifests); },
                         .states = [&] { return together.judge(&CompletenessFacts::states); },
                         .trainer_ends = [&] { return together.judge(&CompletenessFacts::trainer); }},
                        true);
}

Json json_of(const CompletenessFacts& facts) {
  Json json = {{"judged", kJudgements.at(static_cast<size_t>(facts.own.completeness))},
               {"reason", facts.own.reason},
               {"manifests", json_of(facts.manifests)},
               {"states", json_of(facts.states)},
               {"trainer", json_of(facts.trainer)}};
  if (facts.thinned) json["thinned"] = json_of(*facts.thinned);
  return json;
}

Result<CompletenessFacts> facts_of(const Json& json) {
  if (!json.is_object()) return wrong_facts("they are no object");
  CompletenessFacts facts;
  TRY_ASSIGN(const std::string judged, text_in(json, "judged"));
  const auto* const known = std::ranges::find(kJudgements, judged);
  if (known == kJudgements.end()) return wrong_facts("no judgement is called \"" + judged + "\"");
  facts.own.completeness = static_cast<Completeness>(known - kJudgements.begin());
  TRY_ASSIGN(facts.own.reason, text_in(json, "reason"));
  if (json.contains("thinned")) TRY_SET(facts.thinned, share_in(json, "thinned"));
  TRY_ASSIGN(facts.manifests, share_in(json, "manifests"));
  TRY_ASSIGN(facts.states, share_in(json, "states"));
  TRY_ASSIGN(facts.trainer, share_in(json, "trainer"));
  return facts;
}

}  // namespace ckptfs::meta::formats
