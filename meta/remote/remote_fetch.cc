#include "meta/remote/remote_fetch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "io/fault.h"
#include "io/fd.h"
#include "io/parallel.h"
#include "io/printable.h"
#include "meta/remote/json_fields.h"
#include "meta/remote/step_writer.h"

namespace ckptfs::meta::remote {
namespace {

// Of what lies below the folder, one that is not the step's; empty: there is none.
Result<std::string> find_other(const Union& wanted, const std::string& folder) {
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator one(folder, error), end; !error && one != end;
       one.increment(error)) {
    const std::string path = one->path().string().substr(folder.size() + 1);
    const auto found = std::ranges::lower_bound(wanted.entries, path, {}, &UnionEntry::path);
    if (found == wanted.entries.end() || found->path != path) return path;
  }
  return error ? Result<std::string>(Error(error.value(), folder + ": " + error.message())) : std::string();
}

Result<> check_room(int folder, uint64_t missing) {
  struct statvfs found {};
  if (::fstatvfs(folder, &found) != 0) return last_error();
  const uint64_t free = uint64_t{found.f_bavail} * found.f_frsize;
  if (missing <= free) return success();
  return Error(ENOSPC, fmt::format("{} bytes are to be fetched, and {} are free: make room for {} more", missing, free,
                                   missing - free));
}

// What cannot be opened lends nothing.
std::vector<io::Fd> open_lenders(const std::vector<std::string>& lenders) {
  std::vector<io::Fd> opened;
  for (const std::string& lender : lenders) {
    auto folder = io::open_at(AT_FDCWD, lender, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (folder) opened.push_back(std::move(folder).value());
  }
  return opened;
}

class StepComparison {
 public:
  StepComparison(const RemoteStep& step, const Union& wanted, const io::Fd& folder, const ReadSettings& settings)
      : step_(step), wanted_(wanted), folder_(folder), settings_(settings) {}

  Result<std::string> run() {
    for (const UnionEntry& one : wanted_.entries) {
      TRY_ASSIGN(const bool same, is_like(one));
      if (!same) return io::printable(one.path);
      if (step_.entry(one).kind != Entry::Kind::file) continue;
      for (const Piece& piece : pieces_of(one, step_.entry(one).size)) pieces_.push_back(piece);
      total_ += step_.entry(one).size;
    }
    std::atomic<const UnionEntry*> other{nullptr};
    TRY(io::for_each_parallel(pieces_.size(), settings_.parallel, [&](size_t i) -> Result<> {
      if (other != nullptr) return success();
      TRY_ASSIGN(const bool same, is_same(pieces_[i]));
      if (!same) other = pieces_[i].file;
      return success();
    }));
    return other == nullptr ? std::string() : io::printable(other.load()->path);
  }

 private:
  // By kind, and size or target.
  Result<bool> is_like(const UnionEntry& one) const {
    const Entry& entry = step_.entry(one);
    const char* const path = one.path.empty() ? "." : one.path.c_str();
    struct stat found {};
    if (::fstatat(folder_.get(), path, &found, AT_SYMLINK_NOFOLLOW) != 0) {
      return errno == ENOENT || errno == ENOTDIR ? Result<bool>(false) : last_error(io::printable(one.path));
    }
    if (entry.kind == Entry::Kind::folder) return S_ISDIR(found.st_mode);
    if (entry.kind == Entry::Kind::file) {
      return S_ISREG(found.st_mode) && static_cast<uint64_t>(found.st_size) == entry.size;
    }
    std::string target(entry.target.size() + 1, '\0');
    const ssize_t length = ::readlinkat(folder_.get(), path, target.data(), target.size());
    return length >= 0 && target.substr(0, static_cast<size_t>(length)) == entry.target;
  }
  Result<bool> is_same(const Piece& piece) {
    if (settings_.stop != nullptr && *settings_.stop) return Error(ECANCELED, "it was stopped");
    auto file = io::open_at(folder_.get(), piece.file->path, O_RDONLY | O_NOFOLLOW);
    if (!file) return with_name(io::printable(piece.file->path), Error(file.error().errno_value()));
    TRY_ASSIGN(const ChunkSet right, with_name(io::printable(piece.file->path),
                                               right_chunks(step_, piece, file.value().get(), all_chunks(piece))));
    settings_.progress({total_, done_ += piece.size, piece.file->path});
    return right == all_chunks(piece);
  }

  const RemoteStep& step_;
  const Union& wanted_;
  const io::Fd& folder_;
  const ReadSettings& settings_;
  std::vector<Piece> pieces_;
  uint64_t total_ = 0;
  std::atomic<uint64_t> done_{0};
};

}  // namespace

Result<FetchReport> fetch_step(const RemoteStep& step, std::optional<uint32_t> slot, const std::string& folder,
                               const std::vector<std::string>& lenders, const ReadSettings& settings) {
  TRY_ASSIGN(const Union wanted, step.files_of(slot));
  TRY_ASSIGN(const io::Fd target, io::open_at(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  StepWriter writer(step, wanted, target.get(), settings);
  TRY(writer.make(StepWriter::Room::as_written));
  TRY_ASSIGN(const std::string other, find_other(wanted, folder));
  if (!other.empty()) return Error(EEXIST, folder + "/" + other + ": it is not of the step; remove it");
  const std::vector<io::Fd> opened = open_lenders(lenders);
  std::vector<int> lending;
  for (const io::Fd& one : opened) lending.push_back(one.get());
  TRY(writer.reuse(lending));
  TRY(check_room(target.get(), writer.missing()));
  TRY(writer.fetch());
  TRY(writer.finish(false));
  TRY(io::fault_point("remote_fetch.written"));
  FetchReport report{writer.fetched(), writer.shared(), writer.found(), {}, {}};
  TRY_ASSIGN(report.own_folder, writer.own_folder());
  TRY_ASSIGN(report.saved, writer.saved());
  return report;
}

Result<std::string> find_difference(const RemoteStep& step, std::optional<uint32_t> slot, const std::string& folder,
                                    const ReadSettings& settings) {
  TRY_ASSIGN(const Union wanted, step.files_of(slot));
  TRY_ASSIGN(const io::Fd opened, io::open_at(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  TRY_ASSIGN(const std::string other, find_other(wanted, folder));
  if (!other.empty()) return io::printable(other);
  return StepComparison(step, wanted, opened, settings).run();
}

}  // namespace ckptfs::meta::remote
