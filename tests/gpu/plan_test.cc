#include "gpu/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "meta/formats/box.h"

namespace ckptfs::gpu {
namespace {

using meta::formats::Box;
using meta::formats::boxes_of_range;
using meta::formats::BoxRuns;
using meta::formats::Dtype;
using meta::formats::elements_of;
using meta::formats::Shape;

// A tensor, and what one rank holds of it.
struct HeldTensor {
  std::string name;
  Shape shape;
  Box box;
  Dtype dtype = Dtype::bfloat16;
};

using HeldByRank = std::vector<std::vector<HeldTensor>>;

HeldTensor whole(const std::string& name, const Shape& shape) { return {name, shape, meta::formats::whole_box(shape)}; }

Result<std::string> described(const std::vector<HeldTensor>& held) {
  std::vector<Holding> holdings;
  for (const HeldTensor& one : held)
    holdings.push_back({one.name, one.dtype, one.shape, one.box.offsets, one.box.sizes});
  return describe(holdings);
}

Result<std::unique_ptr<const Plan>> plan_of(const std::vector<std::string>& descriptions, const PlanOptions& options,
                                            std::vector<uint32_t> hosts = {}) {
  hosts.resize(descriptions.size());
  return Plan::make(std::vector<std::string_view>(descriptions.begin(), descriptions.end()), hosts, options);
}

std::vector<std::string> described(const HeldByRank& held) {
  std::vector<std::string> descriptions;
  for (const auto& one : held) descriptions.push_back(described(one).value());
  return descriptions;
}

std::unique_ptr<const Plan> plan_of(const HeldByRank& held, const PlanOptions& options = {},
                                    std::vector<uint32_t> hosts = {}) {
  auto plan = plan_of(described(held), options, std::move(hosts));
  EXPECT_TRUE(plan) << plan.error().message();
  return plan ? std::move(plan).value() : nullptr;
}

// The words with which a plan fails.
std::string failure(const std::vector<std::string>& descriptions, int errno_value, bool all = true) {
  const auto plan = plan_of(descriptions, {.whole = all});
  EXPECT_FALSE(plan);
  if (plan) return {};
  EXPECT_EQ(plan.error().errno_value(), errno_value) << plan.error().message();
  return plan.error().message();
}

// The elements of the tensor that a part stands for, in order.
std::vector<uint64_t> elements_in(const HeldTensor& held, const PlannedPart& part) {
  std::vector<uint64_t> elements;
  if (part.begin == part.end) return elements;
  BoxRuns(held.box, held.shape).for_each(part.begin, part.end, [&](uint64_t first, uint64_t, uint64_t count) {
    for (uint64_t at = 0; at < count; ++at) elements.push_back(first + at);
  });
  return elements;
}

// Who owns each element, by tensor: each is owned once, by a rank that says that it holds it.
std::map<std::string, std::map<uint64_t, uint32_t>> painted(const HeldByRank& held, const Plan& plan) {
  std::map<std::string, std::map<uint64_t, uint32_t>> owners;
  for (uint32_t rank = 0; rank < held.size(); ++rank) {
    uint64_t bytes = 0;
    for (const PlannedPart& part : plan.owned(rank)) {
      EXPECT_EQ(part.owner, rank);
      const HeldTensor& one = held[rank].at(part.holding);
      for (const uint64_t element : elements_in(one, part)) {
        EXPECT_TRUE(owners[one.name].emplace(element, rank).second) << one.name << " " << element << " is owned twice";
      }
      bytes += (part.end - part.begin) * meta::formats::size_of(one.dtype);
    }
    EXPECT_EQ(bytes, plan.loads()[rank]);
  }
  return owners;
}

// All elements that any rank holds, by tensor.
std::map<std::string, std::set<uint64_t>> all_elements(const HeldByRank& held) {
  std::map<std::string, std::set<uint64_t>> all;
  for (const auto& of_rank : held) {
    for (const HeldTensor& one : of_rank) {
      const auto elements = elements_in(one, {.end = *elements_of(one.box.sizes)});
      if (!elements.empty()) all[one.name].insert(elements.begin(), elements.end());
    }
  }
  return all;
}

void expect_right(const HeldByRank& held, const Plan& plan) {
  const auto owners = painted(held, plan);
  const auto all = all_elements(held);
  ASSERT_EQ(owners.size(), all.size());
  for (const auto& [name, elements] : all) {
    ASSERT_TRUE(owners.contains(name)) << name;
    EXPECT_EQ(owners.at(name).size(), elements.size()) << name;
  }
}

// A message: its elements in order, as one rank sees it, and its owner.
struct Message {
  std::string name;
  std::vector<uint64_t> elements;
  uint32_t owner = 0;
  bool operator==(const Message&) const = default;
};

std::map<std::pair<uint32_t, uint64_t>, Message> messages(const HeldByRank& held, const Plan& plan, uint32_t rank) {
  std::map<std::pair<uint32_t, uint64_t>, Message> found;
  std::pair<uint32_t, uint64_t> before;
  for (const PlannedPart& part : plan.held(rank)) {
    const HeldTensor& one = held[rank].at(part.holding);
    const auto key = std::pair(part.holders, part.message);
    EXPECT_GE(key, before);
    before = key;
    Message& message = found[key];
    message.name = one.name;
    message.owner = part.owner;
    const auto elements = elements_in(one, part);
    message.elements.insert(message.elements.end(), elements.begin(), elements.end());
  }
  return found;
}

// All ranks of a holder set see the same messages, and a rank gets all that it holds.
void expect_same_messages(const HeldByRank& held, const Plan& plan) {
  std::map<std::pair<uint32_t, uint64_t>, Message> all;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<uint32_t>> seen_by;
  for (uint32_t rank = 0; rank < held.size(); ++rank) {
    std::map<std::string, std::set<uint64_t>> got;
    for (const auto& [key, message] : messages(held, plan, rank)) {
      EXPECT_EQ(all.try_emplace(key, message).first->second, message);
      seen_by[key].push_back(rank);
      if (!message.elements.empty()) got[message.name].insert(message.elements.begin(), message.elements.end());
    }
    EXPECT_EQ(got, all_elements({held[rank]})) << "rank " << rank;
  }
  for (const auto& [key, ranks] : seen_by) EXPECT_TRUE(std::ranges::equal(ranks, plan.holders(key.first)));
}

bool equal(const Plan& a, const Plan& b) {
  const auto same = [](const PlannedPart& one, const PlannedPart& other) {
    return std::tie(one.holding, one.begin, one.end, one.message, one.holders, one.owner) ==
           std::tie(other.holding, other.begin, other.end, other.message, other.holders, other.owner);
  };
  for (uint32_t rank = 0; rank < a.ranks(); ++rank) {
    if (!std::ranges::equal(a.held(rank), b.held(rank), same)) return false;
  }
  return a.loads() == b.loads();
}

double max_over_mean(const std::vector<uint64_t>& loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return *std::ranges::max_element(loads) * static_cast<double>(loads.size()) / sum;
}

// What is random here is small, so pieces may be, too.
constexpr PlanOptions kFine{.whole = true, .least_piece = 1};

class RandomPlacements {
 public:
  explicit RandomPlacements(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t most) { return random_() % most; }

  Shape shape() {
    Shape shape(below(4));
    for (uint64_t& size : shape) size = below(12) == 0 ? below(2) : 1 + below(9);
    return shape;
  }

  // The boxes that each of `ranks` ranks holds.
  std::vector<std::vector<Box>> placed(const Shape& shape, uint32_t ranks) {
    std::vector<std::vector<Box>> boxes(ranks);
    switch (below(4)) {
      case 0: {  // replicated
        for (auto& one : boxes) one.push_back(meta::formats::whole_box(shape));
        break;
      }
      case 1: {  // a mesh of two dimensions, each of which is sharded or replicated; uneven, and some are empty
        const auto columns = 1 + static_cast<uint32_t>(below(ranks)), rows = (ranks + columns - 1) / columns;
        const size_t by_row = below(shape.size() + 1), by_column = below(shape.size() + 1);
        for (uint32_t rank = 0; rank < rows * columns; ++rank) {
          Box box = shard(meta::formats::whole_box(shape), by_row, rank / columns, rows);
          boxes[rank % ranks].push_back(shard(std::move(box), by_column, rank % columns, columns));
        }
        for (auto& one : boxes) one.resize(1);
        // The ranks beyond the mesh's last full row would leave a gap.
        boxes[0] = {meta::formats::whole_box(shape)};
        break;
      }
      case 2: {  // flat ranges of any length
        const uint64_t elements = *elements_of(shape);
        uint64_t begin = 0;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          const uint64_t end =
              rank + 1 == ranks ? elements : std::min(elements, begin + below(2 * elements / ranks + 2));
          boxes[rank] = boxes_of_range(meta::formats::whole_box(shape), begin, end);
          begin = end;
        }
        break;
      }
      default: {  // boxes that overlap anyhow
        for (auto& one : boxes) one.push_back(any_box(shape));
        boxes[below(ranks)] = {meta::formats::whole_box(shape)};
      }
    }
    return boxes;
  }

  HeldByRank held(uint32_t ranks, uint32_t tensors) {
    HeldByRank held(ranks);
    for (uint32_t number = 0; number < tensors; ++number) {
      const Shape size = shape();
      const auto dtype = below(2) == 0 ? Dtype::bfloat16 : Dtype::float32;
      const auto boxes = placed(size, ranks);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        for (const Box& box : boxes[rank]) held[rank].push_back({"t" + std::to_string(number), size, box, dtype});
      }
    }
    return held;
  }

 private:
  static Box shard(Box box, size_t dimension, uint64_t number, uint64_t count) {
    if (dimension == box.sizes.size()) return box;  // replicated
    const uint64_t size = box.sizes[dimension], most = (size + count - 1) / count;
    const uint64_t begin = std::min(size, number * most);
    box.offsets[dimension] += begin;
    box.sizes[dimension] = std::min(size - begin, most);
    return box;
  }

  Box any_box(const Shape& shape) {
    Box box = meta::formats::whole_box(shape);
    for (size_t at = 0; at < shape.size(); ++at) {
      box.offsets[at] = below(shape[at] + 1);
      box.sizes[at] = below(shape[at] - box.offsets[at] + 1);
    }
    return box;
  }

  std::mt19937_64 random_;
};

TEST(Plan, OwnsEachElementOnceWhateverThePlacement) {
  RandomPlacements random(20261126);
  for (int round = 0; round < 1500; ++round) {
    const auto held = random.held(1 + random.below(9), 1 + random.below(5));
    const auto plan = plan_of(held, round % 3 == 0 ? PlanOptions{} : kFine);
    ASSERT_TRUE(plan) << "round " << round;
    expect_right(held, *plan);
    expect_same_messages(held, *plan);
    ASSERT_FALSE(HasFailure()) << "round " << round;
    EXPECT_TRUE(equal(*plan, *plan_of(held, round % 3 == 0 ? PlanOptions{} : kFine)));
  }
}

TEST(Plan, BalancesMeshes) {
  RandomPlacements random(7);
  for (int round = 0; round < 12; ++round) {
    const uint32_t rows = 1 + random.below(6), columns = 1 + random.below(6);
    HeldByRank held(rows * columns);
    for (int number = 0; number < 8; ++number) {
      const std::string name = "t" + std::to_string(number);
      const Shape shape{columns * (1 + random.below(40)), 16 + random.below(200)};
      const uint64_t kind = random.below(3);
      for (uint32_t rank = 0; rank < held.size(); ++rank) {
        HeldTensor one = whole(name, shape);
        if (kind > 0) {
          one.box.sizes[0] /= columns;
          one.box.offsets[0] = rank % columns * one.box.sizes[0];
        }
        held[rank].push_back(one);
      }
    }
    const auto plan = plan_of(held, {.least_piece = 2});
    ASSERT_TRUE(plan);
    expect_right(held, *plan);
    EXPECT_LE(max_over_mean(plan->loads()), 1.05) << rows << " x " << columns;
  }
}

TEST(Plan, BalancesSetsThatAreNotNested) {
  HeldByRank held(4);  // a ring: each two neighbours share a tensor. The first alone has another
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const auto shared = whole("t" + std::to_string(rank), {1000, 50});
    held[rank].push_back(shared);
    held[(rank + 1) % 4].push_back(shared);
  }
  held[0].push_back(whole("alone", {800, 50}));
  const auto plan = plan_of(held, kFine);
  ASSERT_TRUE(plan);
  expect_right(held, *plan);
  EXPECT_LE(max_over_mean(plan->loads()), 1.05);
}

TEST(Plan, SpreadsSmallTensorsOverHosts) {
  HeldByRank held(4);
  for (auto& one : held) one = {whole("a", {40'000}), whole("b", {40'000})};  // two pieces of 80,000 bytes
  const auto plan = plan_of(held, {}, {7, 7, 3, 3});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->loads(), (std::vector<uint64_t>{80'000, 0, 80'000, 0}));
}

TEST(Plan, CutsNoSmallPieces) {
  HeldByRank held(64);
  constexpr uint64_t kLeast = PlanOptions{}.least_piece;
  for (auto& one : held) {
    for (int number = 0; number < 40; ++number) {
      one.push_back(whole("large" + std::to_string(number), {1000, 1600}));
      one.push_back(whole("small" + std::to_string(number), {1600}));
    }
  }
  const auto plan = plan_of(held);
  ASSERT_TRUE(plan);
  EXPECT_LE(max_over_mean(plan->loads()), 1.05);
  for (uint32_t rank = 0; rank < held.size(); ++rank) {
    for (const PlannedPart& part : plan->owned(rank)) {
      const auto& shape = held[rank][part.holding].shape;
      if (shape.size() == 1) {
        EXPECT_EQ(part.end - part.begin, 1600U);
      } else {
        EXPECT_EQ(part.begin % 1600, 0U);
        EXPECT_EQ(part.end % 1600, 0U);
        EXPECT_GE((part.end - part.begin) * 2, kLeast - 3200);
      }
    }
  }
}

TEST(Plan, GivesAnEmptyTensorAndOneWithoutDimensionsAnOwner) {
  const HeldByRank held(3, {whole("none", {0, 4}), whole("number", {})});
  const auto plan = plan_of(held);
  ASSERT_TRUE(plan);
  std::map<uint64_t, int> owners;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (const PlannedPart& part : plan->owned(rank)) ++owners[part.holding];
  }
  EXPECT_EQ(owners, (std::map<uint64_t, int>{{0, 1}, {1, 1}}));
}

TEST(Plan, NamesTheElementsThatNoRankHolds) {
  HeldByRank held(2, {whole("w", {10, 8})});
  held[0][0].box = {{0, 0}, {10, 3}};
  held[1][0].box = {{2, 3}, {8, 5}};
  EXPECT_EQ(failure(described(held), EINVAL), "w: no rank holds its elements [0:2, 3:8] of [10, 8]");
  const auto plan = plan_of(held, {.whole = false});
  ASSERT_TRUE(plan);
  expect_right(held, *plan);
  held[1][0].box = {{0, 0}, {0, 0}};
  EXPECT_EQ(failure(described(held), EINVAL), "w: no rank holds its elements [0:10, 3:8] of [10, 8]");
}

TEST(Plan, NamesRanksThatDisagree) {
  HeldByRank held(3, {whole("a", {4}), whole("w", {10, 8})});
  held[2][1] = whole("w", {8, 10});
  EXPECT_EQ(failure(described(held), EINVAL), "w: rank 0 holds it as BF16 [10, 8], rank 2 as BF16 [8, 10]");
  held[2][1] = whole("w", {10, 8});
  held[2][1].dtype = Dtype::float32;
  EXPECT_EQ(failure(described(held), EINVAL, false), "w: rank 0 holds it as BF16 [10, 8], rank 2 as F32 [10, 8]");
}

TEST(Plan, RefusesElementsThatARankHoldsTwice) {
  HeldByRank held(2, {whole("w", {10})});
  held[1].push_back({"w", {10}, {{9}, {1}}});
  EXPECT_EQ(failure(described(held), EINVAL), "w: rank 1 holds elements of it twice");
  held[1][1] = held[1][0];
  EXPECT_EQ(failure(described(held), EINVAL), "w: rank 1 holds elements of it twice");
}

TEST(Plan, RefusesBoxesThatOverlapInTooManyWays) {
  HeldByRank held;
  for (uint64_t at = 0; at < 3000; ++at) held.push_back({{"w", {6000, 6000}, {{at, at}, {3000, 3000}}}});
  const auto words = failure(described(held), E2BIG, false);
  EXPECT_EQ(words, "w: the boxes that ranks hold overlap in too many ways for a plan");
}

TEST(Plan, OfNobody) {
  EXPECT_TRUE(plan_of(HeldByRank{}));
  const auto plan = plan_of(HeldByRank(2));
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->held(1).empty());
}

TEST(Description, IsTheSameForTheSameHoldingsAlone) {
  const std::vector<HeldTensor> held{whole("a", {4, 6}), {"b", {4, 6}, {{0, 2}, {4, 2}}}};
  EXPECT_EQ(described(held).value(), described(held).value());
  std::set<std::string> different{described(held).value()};
  const auto change = [&](auto&& changed) {
    auto other = held;
    changed(other);
    EXPECT_TRUE(different.insert(described(other).value()).second);
  };
  change([](auto& other) { other[0].name = "c"; });
  change([](auto& other) { other[0].dtype = Dtype::float16; });
  change([](auto& other) { other[0] = whole("a", {6, 4}); });
  change([](auto& other) { other[1].box.offsets[1] = 3; });
  change([](auto& other) { other[1].box.sizes[1] = 3; });
  change([](auto& other) { std::swap(other[0], other[1]); });
  change([](auto& other) { other.pop_back(); });
}

TEST(Description, RefusesWhatIsNoBox) {
  EXPECT_EQ(described(std::vector<HeldTensor>{{"w", {4}, {{2}, {3}}}}).error().message(),
            "w: a box that does not lie in the tensor");
  EXPECT_FALSE(described(std::vector<HeldTensor>{{"w", {4}, {{~uint64_t{0}}, {2}}}}));
  EXPECT_FALSE(described(std::vector<HeldTensor>{{"w", {4}, {{0, 0}, {4, 4}}}}));
  EXPECT_FALSE(described(std::vector<HeldTensor>{whole("w", Shape(65, 1))}));
  EXPECT_FALSE(described(std::vector<HeldTensor>{whole("w", {uint64_t{1} << 32, uint64_t{1} << 32})}));
  EXPECT_EQ(described({whole("w", {4}), whole("w", {5})}).error().message(),
            "w: held twice, with another type or shape");
}

TEST(Description, ThatIsCutOffIsRefusedAndItsRankIsNamed) {
  const HeldByRank held(2, {whole("a", {4, 6}), {"b", {400, 6}, {{130, 2}, {200, 2}}}, whole("", {})});
  auto descriptions = described(held);
  const std::string good = descriptions[1];
  for (size_t size = 0; size < good.size(); ++size) {
    descriptions[1] = good.substr(0, size);
    EXPECT_TRUE(failure(descriptions, EBADMSG).starts_with("rank 1: a description")) << size;
  }
  descriptions[1] = good + '\0';
  failure(descriptions, EBADMSG);
}

// A count or a size that is changed to a huge one is refused, or read without taking memory for it.
TEST(Description, ThatIsDamagedIsHarmless) {
  const HeldByRank held(2, {whole("a", {4, 6}), {"b", {400, 6}, {{130, 2}, {200, 2}}}, whole("", {})});
  const auto good = described(held);
  std::mt19937_64 random(5);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto damaged = good;
    std::string& one = damaged[1];
    const size_t at = random() % one.size();
    if (round % 2 == 0) {
      one[at] = static_cast<char>(random());
    } else {
      one.replace(at, 1, std::string(random() % 10, '\xff') + '\x7f');
    }
    const auto plan = plan_of(damaged, {.whole = false});
    refused += plan ? 0 : 1;
    if (plan) plan.value()->held(1);
  }
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace ckptfs::gpu
