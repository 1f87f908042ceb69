#include "gpu/check_read.h"

#include <algorithm>
#include <set>
#include <string>

namespace ckptfs::gpu {
namespace {

Error differs(const SourceFile& file, const ReadPlan& plan, const PlannedRead& read, uint64_t begin, uint64_t end) {
  const std::string tensors = tensors_in(plan, read, begin, end);
  return Error(EIO, file.path + ": bytes " + std::to_string(begin) + " to " + std::to_string(end) + " (MiB " +
                        std::to_string(begin >> 20) +
                        ") are not those that were saved: their digest differs. Tensors: " +
                        (tensors.empty() ? "none that is wanted" : tensors));
}

}  // namespace

std::string tensors_in(const ReadPlan& plan, const PlannedRead& read, uint64_t begin, uint64_t end) {
  constexpr size_t kMostNamed = 3;
  std::set<std::string> names;
  for (size_t at = read.first; at < read.last; ++at) {
    const Wanted& wanted = plan.wanted[at];
    if (wanted.of != nullptr && wanted.offset < end && wanted.offset + wanted.size > begin) names.insert(*wanted.of);
  }
  std::string text;
  size_t named = 0;
  for (const std::string& name : names) {
    if (named++ == kMostNamed) return text + " and " + std::to_string(names.size() - kMostNamed) + " more";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

Result<uint64_t> check_read(const SourceFile& file, const ReadPlan& plan, const PlannedRead& read,
                            std::span<const std::byte> bytes) {
  const auto& [chunk, digests] = *file.digests;
  uint64_t checked = 0;
  for (uint64_t number = meta::formats::chunks_of(read.begin, chunk); number < digests.size(); ++number) {
    const uint64_t begin = number * chunk, end = std::min(begin + chunk, file.size);
    if (end > read.begin + bytes.size()) break;
    if (io::digest_of(bytes.subspan(begin - read.begin, end - begin)) != digests[number]) {
      return differs(file, plan, read, begin, end);
    }
    checked += end - begin;
  }
  return checked;
}

}  // namespace ckptfs::gpu
