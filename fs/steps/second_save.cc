#include "fs/steps/second_save.h"

#include <algorithm>

namespace ckptfs::fs {

using meta::formats::Completeness;

SaveTimes save_times_of(const views::FilesOfStep& files, const meta::formats::StepNames& names) {
  SaveTimes times;
  for (size_t at = 0; at < files.list().size(); ++at) {
    const std::string& path = files.list()[at].path;
    if (files.made()[at].frozen) continue;
    const meta::WallTime written = meta::wall_time(files.made()[at].ctime);
    times.newest = std::max(times.newest, written);
    if (meta::formats::is_written_first(names, path) &&
        (times.first_written.empty() || written > times.first_written_at)) {
      times.first_written = path;
      times.first_written_at = written;
    }
    if (meta::formats::is_checkpoint_file(names, path) && (times.oldest.empty() || written < times.oldest_at)) {
      times.oldest = path;
      times.oldest_at = written;
    }
  }
  return times;
}

meta::formats::CompletenessJudgement heed_second_save(const SaveTimes& times, const meta::LedgerEntry& ledger,
                                                      meta::formats::CompletenessJudgement judgement) {
  const bool begun = !times.first_written.empty() && times.first_written_at > ledger.whole;
  const bool ended = times.oldest.empty() || times.oldest_at > ledger.whole;
  const bool complete = judgement.completeness == Completeness::complete;
  if (!complete || !ledger.is_written_again()) return judgement;
  if (ledger.is_set_back()) {
    return {Completeness::unknown,
            "another run wrote to it after it had been whole, and the clock had been set back: "
            "its files may be of two saves; `setfattr -n user.ckptfs.whole -v 1 STEP` says that they are not"};
  }
  if (!begun || ended) return judgement;
  return {Completeness::unknown, times.first_written + " was written again after the step had been whole, and " +
                                     times.oldest + " was not: they may be of two saves"};
}

}  // namespace ckptfs::fs
