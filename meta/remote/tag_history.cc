#include "meta/remote/tag_history.h"

#include <algorithm>
#include <utility>

namespace ckptfs::meta::remote {

Result<TagDecisions> TagHistory::update(io::ObjectStore& store, const std::string& tag,
                                        const io::RequestLimits& limits) {
  TRY_ASSIGN(TagDecisions decisions, list_decisions(store, tag, limits));
  TRY(read(store, tag, decisions, limits));
  return decisions;
}

Result<> TagHistory::read(io::ObjectStore& store, const std::string& tag, const TagDecisions& decisions,
                          const io::RequestLimits& limits) {
  while (read_up_to_ + 1 < decisions.undecided) {
    const DecisionName next{tag, read_up_to_ + 1};
    const bool is_commit =
        std::ranges::any_of(decisions.commits, [&](const CommittedStep& step) { return step.decision.n == next.n; });
    if (is_commit) {
      TRY_ASSIGN(Commit commit, fetch_commit(store, next, limits));
      commits_[next.n] = std::move(commit.parts);
    } else {
      TRY_ASSIGN(Void nothing, fetch_void(store, next, limits));
      if (nothing.ended) ended_.emplace(std::move(*nothing.ended), next.n);
    }
    read_up_to_ = next.n;
  }
  return success();
}

std::optional<uint64_t> TagHistory::commit_of(const PushName& part) const {
  for (const auto& [n, parts] : commits_) {
    if (part.slot < parts.size() && parts[part.slot].push == part) return n;
  }
  return std::nullopt;
}

uint64_t TagHistory::highest_number(uint32_t slot) const {
  uint64_t highest = 0;
  for (const auto& [n, parts] : commits_) {
    if (slot < parts.size()) highest = std::max(highest, parts[slot].number);
  }
  return highest;
}

}  // namespace ckptfs::meta::remote
