#include "meta/formats/tensor_map.h"

#include <algorithm>
#include <span>
#include <utility>

namespace ckptfs::meta::formats {

Result<std::string> StepFiles::read(uint32_t index, uint64_t most) const {
  const uint64_t size = list()[index].size;
  if (size > most) return Error(EFBIG, "it is larger than any such file");
  TRY_ASSIGN(const io::ReadableFile file, open(index));
  std::string content(size, '\0');
  TRY_ASSIGN(const size_t got, limited(file).read_full(std::as_writable_bytes(std::span(content)), 0));
  content.resize(got);
  return content;
}

std::optional<uint32_t> index_of(const std::vector<StepFiles::File>& files, std::string_view path) {
  const auto found = std::ranges::find(files, path, &StepFiles::File::path);
  return found == files.end() ? std::nullopt : std::optional(static_cast<uint32_t>(found - files.begin()));
}

std::string text_of(const Problem& problem) {
  return problem.file.empty() ? problem.reason : problem.file + ": " + problem.reason;
}

void add_problems(const TensorMap& map, ShareCheck& share, bool and_absent) {
  for (const Problem& problem : map.problems) {
    const bool counts = and_absent || !problem.absent;
    if (problem.kind == Problem::Kind::missing && counts) share.add_broken(text_of(problem));
    if (problem.kind == Problem::Kind::unreadable) share.add_unclear(text_of(problem));
  }
}

void add_problem(TensorMap& map, Problem problem) {
  constexpr size_t kLongestReason = 8192;
  if (map.problems.size() >= kMostProblems) return;
  if (problem.reason.size() > kLongestReason) problem.reason.resize(kLongestReason);
  map.problems.push_back(std::move(problem));
}

std::optional<uint64_t> elements_of(const Shape& shape) {
  uint64_t elements = 1;
  if (std::ranges::count(shape, 0U) != 0) return 0;
  for (const uint64_t length : shape) {
    if (length > kMostElements / elements) return std::nullopt;
    elements *= length;
  }
  return elements;
}

}  // namespace ckptfs::meta::formats
