#include "fs/steps/thinner.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "fs/views/numbers.h"
#include "io/fault.h"
#include "io/fd.h"
#include "io/log.h"
#include "meta/accounting/accounting.h"
#include "meta/formats/safetensors.h"
#include "meta/formats/step_names.h"
#include "meta/steps/policy.h"
#include "meta/steps/steps.h"
#include "meta/time.h"
#include "meta/tree/unpublished.h"

namespace ckptfs::fs {
namespace {

using meta::Reason;
using meta::formats::Completeness;
using meta::formats::FileRole;
using meta::formats::kWeightsIndexName;
using meta::formats::kWeightsName;
using meta::formats::TensorMap;
using meta::formats::ThinnedFile;
using views::Access;
using views::NodeNumber;
using views::View;

constexpr const char* kSame = "same";

const View::Node* child_of(const View& view, const std::string& name, View::Kind kind) {
  const auto& children = view.node(0)->children;
  const auto found = children.find(name);
  const View::Node* const node = found == children.end() ? nullptr : view.node(found->second);
  return node != nullptr && node->kind == kind ? node : nullptr;
}

// Who may know the names of the tensors may know what went.
Access access_of_manifest(const View& view) {
  const View::Node* const manifest = child_of(view, "manifest.json", View::Kind::text);
  return manifest != nullptr ? manifest->access : view.source().folder;
}

// The index of the view names its own shards, "model.bf16-00001-of-00002.safetensors". transformers looks for
// "model-00001-of-00002.safetensors".
std::string index_for(const std::string& text, const std::string& prefix) {
  auto index = nlohmann::ordered_json::parse(text);
  for (auto& [name, file] : index["weight_map"].items()) file = "model" + file.get<std::string>().substr(prefix.size());
  return index.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

views::Content content_of(const std::string& text) {
  views::Content content;
  content.add(text);
  return content;
}

}  // namespace

// The files of one model of a view.
struct Thinner::Model {
  std::string type;  // "bf16"
  Dtype dtype = Dtype::float32;
  std::vector<std::pair<std::string, NodeNumber>> files;  // by the names that transformers expects
  std::string index;                                      // text; empty: the model is one file
  Access index_access;
};

// What it rests on that nothing speaks against thinning a step.
struct Thinner::Standing {
  meta::InodeNumber series = 0;
  std::string tag{};
  Latest latest{};
  std::vector<std::pair<std::string, meta::InodeNumber>> newest{};  // the steps that are newer, by their names
};

struct Thinner::Plan {
  meta::InodeNumber step = 0;
  std::shared_ptr<const views::StepView> view;
  Model model;
  std::string weights_name;     // of the file of weights, if it is one
  bool stay = false;            // the files of weights are there already
  std::vector<uint32_t> going;  // files of the view
  std::vector<meta::BlobNumber> blobs;
  std::vector<meta::NewFile> files;

  const std::vector<meta::formats::StepFiles::File>& of_step() const { return view->view.source().files; }
  const TensorMap& map() const { return view->view.source().map; }
  size_t new_files() const { return (stay ? 0 : model.files.size() + (model.index.empty() ? 0 : 1)) + 1; }
  uint64_t new_bytes() const {
    uint64_t bytes = 0;
    for (const auto& [name, node] : model.files) bytes += stay ? 0 : view->view.node(node)->size;
    return bytes;
  }
};

Result<Thinner::Standing> Thinner::standing_of(meta::InodeNumber step) {
  TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(step));
  TRY_ASSIGN(const meta::InodeRecord above, tree_.inode(record.parent));
  if ((above.flags & meta::kSeries) == 0) return Error(EBUSY, "it is no step of a series");
  TRY_ASSIGN(const SeriesStatus series, step_facts_.inspect_series(record.parent, "", false));
  const auto found = std::ranges::find(series.steps, step, &StepStatus::inode);
  if (found == series.steps.end()) return Error(EBUSY, "it is no step, or it is being removed");
  if (found->facts.completeness == Completeness::weights) return Error(EBUSY, "it holds weights only already");
  if (found->damaged || !found->facts.is_complete()) {
    return Error(EBUSY, std::string("it is ") + state_of(*found) + (found->reason.empty() ? "" : ": ") + found->reason);
  }
  if (const std::string& why = series.why_unclear(found->facts.owner); !why.empty()) return Error(EBUSY, why);
  TRY_ASSIGN(const meta::SeriesPolicy rules, meta::policy_of(store_, record.parent));
  TRY_ASSIGN(const meta::Policy policy, meta::parse_policy(rules.set));
  std::vector<meta::StepFacts> facts;
  for (const StepStatus& one : series.steps) facts.push_back(one.facts);
  const auto protections = meta::find_protections(facts, policy.hold_unpushed);
  const auto& own = protections[static_cast<size_t>(found - series.steps.begin())];
  if (!own.empty()) return Error(EBUSY, words_of(own.front()));
  Standing standing{record.parent, found->facts.tag, series.latest};
  for (const auto holds : meta::kNeverLost) {
    for (const StepStatus* const one : series.newest(holds)) {
      if (one->facts.owner == found->facts.owner) standing.newest.emplace_back(one->facts.tag, one->inode);
    }
  }
  return standing;
}

Result<std::shared_ptr<const views::StepView>> Thinner::view_of(meta::InodeNumber step, uint32_t user) {
  using Made = Result<std::shared_ptr<const views::StepView>>;
  const auto made = std::make_shared<std::promise<Made>>();
  views_.step_view(step, user, [made](Made view) { made->set_value(std::move(view)); });
  return made->get_future().get();
}

Result<Thinner::Model> Thinner::model_of(const View& view, const std::string& type, const std::string& name) {
  Model model;
  model.type = type;
  const View::Node* link = child_of(view, name == meta::formats::kAdapterName ? name : kWeightsName, View::Kind::link);
  if (link == nullptr) link = child_of(view, kWeightsIndexName, View::Kind::link);
  for (const views::ModelType& one : views::kModelTypes) {
    const bool linked = link != nullptr && link->text->find(std::string(".") + one.name + ".") != std::string::npos;
    if (type != one.name && !(type == kSame && linked)) continue;
    model.type = one.name;
    model.dtype = one.dtype;
  }
  const std::string prefix = "model." + model.type;
  for (const auto& [child, number] : view.node(0)->children) {
    const bool is_model = view.node(number)->kind == View::Kind::model &&
                          (child.starts_with(prefix + ".") || child.starts_with(prefix + "-"));
    if (is_model) model.files.emplace_back("model" + child.substr(prefix.size()), number);
  }
  if (model.files.empty()) return Error(EINVAL, "its view has no model files (manifest.json there tells why)");
  if (model.files.size() == 1) {
    model.files.front().first = name;
  } else {
    if (!meta::formats::is_weights_name(name)) return Error(EINVAL, name + " would become several files");
    const std::string index_name = "model.safetensors.index." + model.type + ".json";
    const View::Node* const index = child_of(view, index_name, View::Kind::text);
    if (index == nullptr) return Error(EINVAL, "its view has no " + index_name);
    model.index = index_for(*index->text, prefix);
    model.index_access = index->access;
  }
  return model;
}

Result<Thinner::Plan> Thinner::make_plan(meta::InodeNumber step, const std::string& type, uint32_t user) {
  Plan plan;
  plan.step = step;
  TRY_ASSIGN(plan.view, view_of(step, user));
  const TensorMap& map = plan.map();
  if (!map.problems.empty()) {
    const auto& problem = map.problems.front();
    return Error(EINVAL,
                 "its view has problems: " + (problem.file.empty() ? "" : problem.file + ": ") + problem.reason);
  }
  if (map.parameters.empty() || !map.names_from.empty()) {
    return Error(EINVAL, "no file of it tells the names of its tensors (it is a save alone, say)");
  }
  const auto names = meta::formats::names_of(plan.of_step());
  if (names.megatron || names.has(FileRole::rank_pickle)) {
    return Error(EINVAL, "what has saved it (Megatron, verl) loads no weights without what lies beside them");
  }
  if (const std::string other = meta::formats::unknown_weights(map); !other.empty()) {
    return Error(EINVAL, "the tensor " + other + " is neither in the model nor known to be for a resume");
  }
  plan.weights_name = meta::formats::weights_name(map, plan.of_step());
  TRY_ASSIGN(plan.model, model_of(plan.view->view, type, plan.weights_name));
  const auto dtype = type == kSame ? std::nullopt : std::optional(plan.model.dtype);
  plan.stay = meta::formats::has_weights_files(map, plan.of_step(), dtype);
  plan.going = meta::formats::files_that_go(map, plan.of_step(), plan.stay);
  if (plan.going.empty()) return Error(EINVAL, "it holds nothing that is for a resume only");
  TRY(replace_manifest(plan));
  TRY(refuse_other_weights(plan));
  return plan;
}

// The manifest of an earlier thinning goes, too, if the step was saved anew since. A file of its name that is none is
// somebody's, and in the way.
Result<> Thinner::replace_manifest(Plan& plan) const {
  const auto index = meta::formats::index_of(plan.of_step(), meta::formats::kThinnedName);
  if (!index || plan.of_step()[*index].size > meta::formats::kMostThinned) return success();
  std::string text(plan.of_step()[*index].size, '\0');
  TRY_ASSIGN(const size_t got,
             ViewSources(store_, *plan.view).read(*index, std::as_writable_bytes(std::span(text)), 0));
  if (meta::formats::parse_thinned(text.substr(0, got))) plan.going.push_back(*index);
  return success();
}

// A file of weights that is replaced must hold no tensor that the new files lack. A name that is taken by anything else
// stays with it.
Result<> Thinner::refuse_other_weights(const Plan& plan) const {
  std::set<std::string_view> names;
  for (const auto& parameter : plan.map().parameters) names.insert(parameter.name);
  for (const auto& tied : plan.map().tied) names.insert(tied.name);
  std::set<std::string_view> going;
  for (const uint32_t index : plan.going) {
    const std::string& path = plan.of_step()[index].path;
    going.insert(path);
    if (!meta::formats::is_weights_name(path) || !path.ends_with(".safetensors")) continue;
    TRY_ASSIGN(const io::Fd file, tree_.open_blob(plan.view->files[index].inode, O_RDONLY));
    const auto header = meta::formats::read_safetensors_header(file.get());
    if (!header) return Error(EINVAL, path + " would be replaced, and cannot be read: " + header.error().message());
    for (const auto& tensor : header.value().tensors) {
      if (names.contains(tensor.name)) continue;
      return Error(EINVAL, path + " would be replaced, and holds " + tensor.name + ", which the model lacks; move it");
    }
  }
  std::vector<std::string> wanted{meta::formats::kThinnedName};
  for (const auto& [name, node] : plan.model.files) wanted.push_back(name);
  if (!plan.model.index.empty()) wanted.emplace_back(kWeightsIndexName);
  for (const std::string& name : wanted) {
    const bool ours = name != meta::formats::kThinnedName && plan.stay;
    if (!ours && !going.contains(name) && tree_.child(plan.step, name))
      return Error(EINVAL, name + " is there, and would be replaced; move it");
  }
  return success();
}

// Writes the files of weights and the manifest into the promised blobs.
Result<> Thinner::keep_files(Plan& plan, ThinReport& report, const KeepPause& pause) {
  TRY_ASSIGN(plan.blobs, meta::promise_blobs(store_.tree(), plan.new_files()));
  const views::StepView& view = *plan.view;
  ViewSources sources(store_, view);
  const KeepPause unless_stopped = [&](auto time) { return !stop_ && pause(time); };
  const auto keep = [&](const std::string& name, const views::Content& content,
                        const Access& access) -> Result<ThinnedFile> {
    const meta::BlobNumber blob = plan.blobs[plan.files.size()];
    TRY_ASSIGN(const std::string digest, keep_content(store_, content, sources, blob, view.saved, unless_stopped));
    // Who may read it may read it, and its owner may change it, as with any file.
    plan.files.push_back({name, blob, (access.mode & 0444) | 0200, access.uid, access.gid, view.saved});
    return ThinnedFile{name, content.size(), digest};
  };
  auto& kept = report.manifest.kept;
  for (const auto& [name, node] : plan.model.files) {
    if (plan.stay) continue;
    TRY_ASSIGN(kept.emplace_back(), keep(name, *view.content(node), view.view.node(node)->access));
  }
  TRY(sources.check_write_back());
  if (!plan.stay && !plan.model.index.empty())
    TRY_SET(kept.emplace_back(), keep(kWeightsIndexName, content_of(plan.model.index), plan.model.index_access));
  TRY_ASSIGN(const std::string text, meta::formats::thinned_text(report.manifest));
  TRY(keep(meta::formats::kThinnedName, content_of(text), access_of_manifest(view.view)));
  return success();
}

// Behind the lock of saves and seals, for which the thinning may have waited long. So it asks names only, no files.
Result<> Thinner::refuse_by_changes(const Plan& plan, const Standing& standing) {
  TRY_ASSIGN(const bool current, views_.is_current(*plan.view));
  if (!current) return Error(EBUSY, "a file of it has changed meanwhile; try again");
  TRY_ASSIGN(const bool in_use, step_facts_.is_in_use(plan.step));
  if (in_use) return Error(EBUSY, words_of(Reason::in_use));
  const Latest latest = latest_of(tree_, standing.series);
  if (latest.names(standing.tag)) return Error(EBUSY, words_of(Reason::latest));
  if (latest != standing.latest) return Error(EBUSY, "`latest` has just changed; try again");
  for (const auto& [tag, newer] : standing.newest) {
    const auto there = tree_.child(standing.series, tag);
    if (!there || there.value() != newer) return Error(EBUSY, tag + ", which is newer, has gone meanwhile; try again");
  }
  return success();
}

Result<> Thinner::put_in_place(const Plan& plan, const Standing& standing) {
  meta::Thinning thinning;
  thinning.step = plan.step;
  thinning.files = plan.files;
  for (const uint32_t index : plan.going) thinning.going.insert(plan.of_step()[index].path);
  thinning.check = [&]() -> Result<> {
    TRY(io::fault_point("thin.before_change"));
    return refuse_by_changes(plan, standing);
  };
  TRY_ASSIGN(const meta::Thinned thinned, meta::thin(store_, thinning));
  views_.forget(plan.step);
  if (const auto record = tree_.inode(plan.step)) {
    notifications_.name_changed(views::number_of(record.value().parent, 0), meta::name_of(tree_, plan.step));
  }
  removals_.dropped(thinned.files);
  removals_.empty(thinned.directories);
  TRY(io::fault_point("thin.after_batch"));
  TRY(tree_.sync());
  return io::fault_point("thin.after_publish");
}

// close() returns before the kernel's RELEASE reaches the daemon. So wait for files that were closed a moment ago.
Result<Thinner::Standing> Thinner::refuse_by_facts(meta::InodeNumber step) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (true) {
    auto standing = standing_of(step);
    const bool used = !standing && standing.error().message() == words_of(Reason::in_use);
    if (!used || std::chrono::steady_clock::now() >= until) return standing;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// What is kept of a file that is there already is listed, too. Blocks that the new files share with those that go stay
// taken, and so count as new ones.
Result<ThinReport> Thinner::foretell(const Plan& plan) {
  ThinReport report;
  report.step = tree_.path_of(plan.step);
  TRY_ASSIGN(const auto entries, tree_.list(plan.step));
  report.manifest.from = meta::checkpoint_kind(entries);
  report.manifest.type = plan.model.type;
  report.manifest.thinned = meta::now().tv_sec;
  const views::Source& source = plan.view->view.source();
  const Access access = access_of_manifest(plan.view->view);
  const auto listed = [&](uint32_t index) {
    const bool told = views::covers(source.access[index], access);
    return ThinnedFile{source.files[index].path, source.files[index].size, told ? source.digests[index] : ""};
  };
  std::vector<meta::InodeNumber> gone;
  for (const uint32_t index : plan.going) {
    gone.push_back(plan.view->files[index].inode);
    if (plan.of_step()[index].path == meta::formats::kThinnedName) continue;  // one that is there tells of a thinning
    report.manifest.went.push_back(listed(index));
  }
  for (uint32_t index = 0; plan.stay && index < plan.of_step().size(); ++index) {
    const std::string& path = plan.of_step()[index].path;
    if (meta::formats::is_weights_name(path) || path == plan.weights_name)
      report.manifest.kept.push_back(listed(index));
  }
  TRY_ASSIGN(report.before, store_.accounting().exclusive({plan.step}));
  TRY_ASSIGN(const uint64_t freed, store_.accounting().exclusive(std::move(gone)));
  report.freed = freed - std::min(freed, plan.new_bytes());
  report.after = report.before - std::min(report.before, report.freed);
  return report;
}

Result<ThinReport> Thinner::thin(meta::InodeNumber step, const std::string& type, uint32_t user, bool dry_run,
                                 const KeepPause& pause) {
  TRY(refuse_by_facts(step));
  if (!dry_run) {  // before the view is made, since it may change the times of files
    TRY_ASSIGN(const StepStatus status, step_facts_.inspect_step(step));
    TRY(step_facts_.make_durable(status));
  }
  TRY_ASSIGN(Plan plan, make_plan(step, type, user));
  TRY_ASSIGN(ThinReport report, foretell(plan));
  if (dry_run) {
    for (const auto& [name, node] : plan.model.files) {
      if (!plan.stay) report.manifest.kept.push_back({name, plan.view->view.node(node)->size, {}});
    }
    return report;
  }
  const auto kept = [&]() -> Result<Standing> {
    TRY(keep_files(plan, report, pause));
    TRY(tree_.write_back().sync_all());
    return refuse_by_facts(step);  // writing may have taken minutes
  }();
  if (!kept) {
    meta::doom_unpublished(tree_, plan.blobs, "files of a thinning that failed");
    return kept.error();
  }
  TRY(put_in_place(plan, kept.value()));
  log::info("thin {}: {} weights stay, {} files went, {} MiB are freed", report.step, report.manifest.type,
            report.manifest.went.size(), report.freed >> 20);
  return report;
}

}  // namespace ckptfs::fs
