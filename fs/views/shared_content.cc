#include "fs/views/shared_content.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "io/aligned_buffer.h"
#include "io/clone.h"
#include "io/fault.h"

namespace ckptfs::fs::views {
namespace {

constexpr uint64_t kLeastRun = uint64_t{64} << 10;     // on average, since to share a run costs as much as a small copy
constexpr uint64_t kMostCopied = 256;                  // one part in so many may be copied
constexpr uint64_t kMayBeCopied = uint64_t{64} << 10;  // of any content: headers, the edges of a few runs
constexpr size_t kChunk = size_t{1} << 20;

// The runs of the content that are whole blocks of the step's files.
std::vector<Content::Run> whole_blocks(const Content& content, uint64_t block) {
  std::vector<Content::Run> blocks;
  for (Content::Run run : content.runs()) {
    if (run.begin % block != run.offset % block) continue;
    const uint64_t skipped = (block - run.begin % block) % block;
    if (run.size < skipped + block) continue;
    blocks.push_back({run.begin + skipped, (run.size - skipped) / block * block, run.file, run.offset + skipped});
  }
  return blocks;
}

bool is_worth_it(const std::vector<Content::Run>& blocks, uint64_t size) {
  uint64_t shared = 0;
  for (const Content::Run& run : blocks) shared += run.size;
  return shared + std::max(size / kMostCopied, kMayBeCopied) >= size && blocks.size() <= size / kLeastRun;
}

Result<> copy_between(const Content& content, uint64_t begin, uint64_t end, int to, const ReadPiece& read_piece) {
  io::AlignedBuffer memory;
  while (begin < end) {
    const auto buffer = memory.get(std::min<uint64_t>(end - begin, kChunk));
    if (buffer.empty()) return Error(ENOMEM);
    const auto part = buffer.first(std::min<uint64_t>(buffer.size(), end - begin));
    TRY_ASSIGN(const size_t got, content.read(part, begin, read_piece));
    TRY(io::write_full(to, part.first(got), static_cast<off_t>(begin)));
    begin += got;
  }
  return success();
}

// Fills the empty file: `blocks` are shared, and the rest is copied.
Result<> fill(int file, const Content& content, const std::vector<Content::Run>& blocks,
              const PieceDescriptor& descriptor, const ReadPiece& read_piece) {
  // Set the length before anything is written. Otherwise XFS would allocate ahead of the writer.
  if (::ftruncate(file, static_cast<off_t>(content.size())) != 0) return last_error("the length of a view");
  uint64_t at = 0;
  for (const Content::Run& run : blocks) {
    TRY(copy_between(content, at, run.begin, file, read_piece));
    TRY(io::fault_point("views.clone"));
    TRY_ASSIGN(const int from, descriptor(run.file));
    TRY(io::clone_range(from, static_cast<off_t>(run.offset), file, static_cast<off_t>(run.begin), run.size));
    at = run.begin + run.size;
  }
  return copy_between(content, at, content.size(), file, read_piece);
}

// Empty: it is not worth it.
Result<std::vector<Content::Run>> shareable_blocks(const Content& content, int place) {
  if (content.size() < kLeastShared) return std::vector<Content::Run>();
  TRY_ASSIGN(const struct stat st, io::stat_fd(place));
  auto blocks = whole_blocks(content, static_cast<uint64_t>(st.st_blksize));
  if (!is_worth_it(blocks, content.size())) blocks.clear();
  return blocks;
}

}  // namespace

Result<std::optional<io::Fd>> share_content(const Content& content, int folder, const PieceDescriptor& descriptor,
                                            const ReadPiece& read_piece) {
  TRY_ASSIGN(const auto blocks, shareable_blocks(content, folder));
  if (blocks.empty()) return std::optional<io::Fd>();
  TRY_ASSIGN(io::Fd file, io::open_at(folder, ".", O_TMPFILE | O_RDWR));
  TRY(fill(file.get(), content, blocks, descriptor, read_piece));
  return std::optional<io::Fd>(std::move(file));
}

Result<bool> fill_with_shared(int file, const Content& content, const PieceDescriptor& descriptor,
                              const ReadPiece& read_piece) {
  TRY_ASSIGN(const auto blocks, shareable_blocks(content, file));
  if (blocks.empty()) return false;
  TRY(fill(file, content, blocks, descriptor, read_piece));
  return true;
}

}  // namespace ckptfs::fs::views
