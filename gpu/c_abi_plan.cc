// The part of the C interface that is about groups of ranks.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/c_guard.h"
#include "gpu/ckptfs.h"
#include "gpu/description.h"
#include "gpu/plan.h"
#include "io/digest.h"
#include "meta/formats/box.h"

namespace formats = ckptfs::meta::formats;
namespace gpu = ckptfs::gpu;
using ckptfs::Error;
using ckptfs::Result;
using ckptfs::success;
using ckptfs::gpu::guarded;

struct ckptfs_plan {
  std::unique_ptr<const gpu::Plan> plan;
  std::vector<ckptfs_planned> parts;  // of the last call
};

namespace {

std::span<const std::byte> bytes_at(const void* bytes, uint64_t size) {
  return {static_cast<const std::byte*>(bytes), size};
}

Result<gpu::Holding> holding_of(const ckptfs_holding& holding) {
  const auto dtype = formats::dtype_of_safetensors(holding.dtype);
  if (!dtype) return Error(EINVAL, std::string(holding.name) + ": " + holding.dtype + " is no type of safetensors");
  const auto numbers = [&](const uint64_t* values) { return std::span(values, holding.dimensions); };
  return gpu::Holding{holding.name, *dtype, numbers(holding.shape), numbers(holding.offsets), numbers(holding.sizes)};
}

// Hands the parts out; they stay with the plan.
void give(ckptfs_plan* plan, const std::vector<gpu::PlannedPart>& parts, const ckptfs_planned** given,
          uint64_t* count) {
  plan->parts.clear();
  plan->parts.reserve(parts.size());
  for (const gpu::PlannedPart& part : parts) {
    plan->parts.push_back({part.holding, part.begin, part.end, part.message, part.holders, part.owner});
  }
  *given = plan->parts.data();
  *count = plan->parts.size();
}

Result<> check_rank(const ckptfs_plan* plan, uint32_t rank) {
  if (rank < plan->plan->ranks()) return success();
  return Error(EINVAL, "the plan has no rank " + std::to_string(rank));
}

}  // namespace

extern "C" {

int ckptfs_describe(const ckptfs_holding* holdings, uint64_t count, void** bytes, uint64_t* size) {
  return guarded([&]() -> Result<> {
    std::vector<gpu::Holding> all;
    all.reserve(count);
    for (uint64_t at = 0; at < count; ++at) {
      TRY_ASSIGN(const auto holding, holding_of(holdings[at]));
      all.push_back(holding);
    }
    TRY_ASSIGN(const std::string described, gpu::describe(all));
    auto copy = std::make_unique<char[]>(described.size());
    std::memcpy(copy.get(), described.data(), described.size());
    *bytes = copy.release();
    *size = described.size();
    return success();
  });
}

void ckptfs_bytes_free(void* bytes) { delete[] static_cast<char*>(bytes); }

int ckptfs_digest(const void* bytes, uint64_t size, unsigned char digest[32]) {
  return guarded([&]() -> Result<> {
    const auto found = ckptfs::io::digest_of(bytes_at(bytes, size));
    std::memcpy(digest, found.data(), found.size());
    return success();
  });
}

int ckptfs_plan_make(const void* const* descriptions, const uint64_t* sizes, const uint32_t* hosts, uint32_t ranks,
                     int whole, ckptfs_plan** plan) {
  return guarded([&]() -> Result<> {
    std::vector<std::string_view> all;
    all.reserve(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      all.emplace_back(static_cast<const char*>(descriptions[rank]), sizes[rank]);
    }
    TRY_ASSIGN(auto made, gpu::Plan::make(all, {hosts, ranks}, {.whole = whole != 0}));
    *plan = new ckptfs_plan{std::move(made), {}};
    return success();
  });
}

void ckptfs_plan_close(ckptfs_plan* plan) { delete plan; }

int ckptfs_plan_owned(ckptfs_plan* plan, uint32_t rank, const ckptfs_planned** parts, uint64_t* count) {
  return guarded([&]() -> Result<> {
    TRY(check_rank(plan, rank));
    give(plan, plan->plan->owned(rank), parts, count);
    return success();
  });
}

int ckptfs_plan_held(ckptfs_plan* plan, uint32_t rank, const ckptfs_planned** parts, uint64_t* count) {
  return guarded([&]() -> Result<> {
    TRY(check_rank(plan, rank));
    give(plan, plan->plan->held(rank), parts, count);
    return success();
  });
}

int ckptfs_plan_holders(const ckptfs_plan* plan, uint32_t holders, const uint32_t** ranks, uint64_t* count) {
  return guarded([&]() -> Result<> {
    if (holders >= plan->plan->holder_sets()) return Error(EINVAL, "the plan has no such set of holders");
    const auto found = plan->plan->holders(holders);
    *ranks = found.data();
    *count = found.size();
    return success();
  });
}

const uint64_t* ckptfs_plan_loads(const ckptfs_plan* plan) { return plan->plan->loads().data(); }

int ckptfs_boxes_of_range(const uint64_t* offsets, const uint64_t* sizes, uint32_t dimensions, uint64_t begin,
                          uint64_t end, uint64_t* boxes, uint64_t* count) {
  return guarded([&]() -> Result<> {
    const formats::Box box{{offsets, offsets + dimensions}, {sizes, sizes + dimensions}};
    const auto elements = formats::elements_of(box.sizes);
    if (!elements || begin > end || end > *elements) return Error(EINVAL, "a range that does not lie in its box");
    const auto found = formats::boxes_of_range(box, begin, end);
    for (const formats::Box& one : found) {
      boxes = std::ranges::copy(one.offsets, boxes).out;
      boxes = std::ranges::copy(one.sizes, boxes).out;
    }
    *count = found.size();
    return success();
  });
}

}  // extern "C"
