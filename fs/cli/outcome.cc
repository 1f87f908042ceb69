#include "fs/cli/outcome.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <span>
#include <string_view>

namespace ckptfs::fs::cli {
namespace {

constexpr std::string_view kWell = "ok";

}  // namespace

Result<Outcome> Outcome::make() {
  io::Fd memory(::memfd_create("ckptfs-outcome", MFD_CLOEXEC));
  if (!memory) return last_error("memfd_create");
  if (::fchmod(memory.get(), 0600) != 0) return last_error("memfd");
  return Outcome(std::move(memory));
}

Result<io::Fd> Outcome::reader() const {
  return io::open_at(AT_FDCWD, "/proc/self/fd/" + std::to_string(memory_.get()), O_RDONLY);
}

Result<> Outcome::tell(const Result<>& ended) const {
  const std::string words = ended ? std::string(kWell) : ended.error().message();
  return io::write_full(memory_.get(), std::as_bytes(std::span(words)), 0);
}

Result<> Outcome::told(int reader) {
  std::array<std::byte, 4096> words{};
  TRY_ASSIGN(const size_t length, io::read_full(reader, words, 0));
  const std::string_view text(reinterpret_cast<const char*>(words.data()), length);
  if (text == kWell) return success();
  if (text.empty()) return Error(EIO, "the daemon ended before everything was written down");
  return Error(EIO, "not everything was written down: " + std::string(text));
}

}  // namespace ckptfs::fs::cli
