#include "fs/steps/abandonment.h"

#include <mutex>

#include "fs/views/files_of_step.h"
#include "meta/formats/checkpoint.h"
#include "meta/formats/file_kinds.h"
#include "meta/steps/ledger.h"
#include "meta/steps/policy.h"
#include "meta/steps/steps.h"

namespace ckptfs::fs {
namespace {

using meta::formats::FileKind;
using meta::formats::FileRole;

constexpr size_t kMostSiblings = 256;

}  // namespace

Result<bool> Abandonment::is_open(meta::InodeNumber step) const {
  bool open = is_folder_open_(step);
  meta::InodeNumber asked = step;  // the files of one folder come one after the other
  TRY(meta::for_each_file(tree_, step, [&](const auto&, meta::InodeNumber file) -> Result<> {
    open = open || files_.open_at_all(file);
    TRY_ASSIGN(const meta::InodeRecord record, tree_.inode(file));
    if (record.parent != asked) open = open || is_folder_open_(record.parent);
    asked = record.parent;
    return success();
  }));
  if (open) return true;
  return step_facts_.is_mapped_for_writing(step);  // also by one who writes past a daemon that died
}

Result<std::string> Abandonment::find_protection(meta::InodeNumber series, meta::InodeNumber step,
                                                 const std::string& tag) const {
  const Latest latest = latest_of(tree_, series);
  if (!latest.unread.empty()) {
    const auto& [tracker, why] = *latest.unread.begin();
    return "nobody can tell what `" + tracker + "` names: " + why;
  }
  TRY_ASSIGN(const meta::SeriesPolicy policy, meta::policy_of(store_, series));
  const auto setter = policy.set_by.find(kRule);
  if (!policy.set.contains(kRule) || setter == policy.set_by.end()) return "its series has no such rule";
  TRY_ASSIGN(const bool may, meta::may_rules_remove(tree_, {{kRule, "1"}}, {*setter}, step));
  TRY_ASSIGN(const auto pinned, tree_.pinned_folders());
  meta::StepFacts facts;
  facts.pinned = pinned.contains(step);
  facts.latest = latest.names(tag);
  facts.elsewhere = pushes_.has_slots(series);
  facts.out_of_reach = !may;
  const auto protections = meta::own_protections(facts, meta::kSetAside);
  return std::string(protections.empty() ? "" : meta::words_of(protections.front(), meta::kSetAside));
}

Result<meta::formats::SiblingFiles> Abandonment::siblings_of(meta::InodeNumber series, meta::InodeNumber step) const {
  meta::formats::SiblingFiles found;
  TRY_ASSIGN(const meta::InodeRecord own, tree_.inode(step));
  TRY_ASSIGN(const auto ledger, meta::ledger_of(store_, step));
  // Under another name a training may save a model alone, and mean it.
  const bool named_by_trainer = meta::name_of(tree_, step).starts_with("checkpoint-");
  TRY_ASSIGN(const auto entries, tree_.list(series));
  size_t asked = 0;
  for (const meta::DirectoryEntry& entry : entries) {
    if (stopping_) return Error(ECANCELED);
    TRY_ASSIGN(const bool named, meta::may_be_step(tree_, series, entry.name));
    if (entry.type != S_IFDIR || entry.inode == step || !named) continue;
    const auto record = tree_.inode(entry.inode);
    if (!record || record.value().uid != own.uid) continue;  // nobody's step is judged by another user's
    if (++asked > kMostSiblings) break;
    const auto files = tree_.list(entry.inode);
    if (!files) continue;
    bool has_trainer_state = false;
    for (const meta::DirectoryEntry& file : files.value()) {
      const FileKind kind = meta::formats::kind_of(file.name);
      has_trainer_state = has_trainer_state || kind.role == FileRole::trainer_state;
      found.dcp_metadata = found.dcp_metadata || kind.role == FileRole::dcp_metadata;
      found.first_model_states = found.first_model_states || kind.is_first_model_states();
    }
    found.trainer_state = found.trainer_state || has_trainer_state;
    if (!has_trainer_state || !named_by_trainer || found.of_same_trainer) continue;
    TRY_ASSIGN(const auto sibling, meta::ledger_of(store_, entry.inode));
    found.of_same_trainer = meta::share_a_run(ledger, sibling);
  }
  return found;
}

Result<meta::formats::CompletenessJudgement> Abandonment::judge(meta::InodeNumber series,
                                                                meta::InodeNumber step) const {
  const views::AskWriters nobody = [](meta::InodeNumber, int) { return views::Writers{}; };
  views::FilesOfStep files(store_, nobody, stopping_);
  TRY(files.collect(step));
  const std::lock_guard turn(readings_);
  const auto judged = meta::formats::judge_completeness(files, meta::formats::read_checkpoint(files));
  if (files.short_of()) return *files.short_of();
  TRY_ASSIGN(const auto ledger, meta::ledger_of(store_, step));
  TRY_ASSIGN(const Declared declared, declared_of(tree_, step));
  TRY_ASSIGN(const auto heeded, heed_declared(store_, step, ledger, declared, judged));
  if (meta::formats::is_whole(heeded.completeness)) return heeded;
  TRY_ASSIGN(const auto siblings, siblings_of(series, step));
  auto judgement = meta::formats::judge_abandoned(files, heeded, siblings);
  if (files.short_of()) return *files.short_of();
  return heed_symlinks(tree_, step, std::move(judgement));
}

}  // namespace ckptfs::fs
