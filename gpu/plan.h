// The plan of a group of ranks: who writes which bytes of a save, or who reads which of a load. Each rank makes it by
// itself from the descriptions of all ranks (description.h), and all make the same one.
//
// Each element is owned by one rank that holds it. Bytes that several ranks hold are balanced over these, and over
// their hosts (plan_balance.h). Boxes that overlap are cut into cells (plan_cells.h). The cells that the same ranks
// hold are laid end to end, and each of these ranks owns a stretch of that. A stretch begins and ends between tensors,
// or between rows of one, where otherwise a piece would be small.
//
// Ranks whose descriptions are equal are one kind (plan_kinds.h), so that replicas cost little. Memory: some 80 bytes
// for each box of each kind.
//
// Thread safety: nothing changes a plan after it is made; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gpu/plan_balance.h"
#include "gpu/plan_cells.h"
#include "gpu/plan_kinds.h"
#include "io/result.h"

namespace ckptfs::gpu {

// A part of what a rank holds: elements [begin, end) of one of its holdings, in row-major order. An empty tensor is a
// part, too, so that somebody writes that it exists.
struct PlannedPart {
  uint64_t holding = 0;  // its index in the rank's description
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t message = 0;  // see Plan::held
  uint32_t holders = 0;  // the number of the holder set
  uint32_t owner = 0;    // a rank
};

struct PlanOptions {
  // Are elements that no rank holds an error? They are in a save. In a load each rank holds what it wants.
  bool whole = true;
  // Bytes. A smaller piece is made only of a smaller tensor or box.
  uint64_t least_piece = uint64_t{64} << 10;
};

class Plan {
 public:
  // `descriptions` and `hosts` have an entry for each rank. Ranks of one host have the same number. Fails in words:
  // with EINVAL if ranks do not agree about a tensor, a rank holds elements twice, or no rank holds an element; with
  // EBADMSG for a description that cannot be read; with E2BIG if there is too much. The plan does not refer to the
  // arguments.
  static Result<std::unique_ptr<const Plan>> make(std::span<const std::string_view> descriptions,
                                                  std::span<const uint32_t> hosts, const PlanOptions& options = {});

  // What a rank owns: by holder set, then by tensor.
  std::vector<PlannedPart> owned(uint32_t rank) const;
  // All that a rank holds, with the owners. All ranks of a holder set get its parts in the same order. Parts with the
  // same `holders` and `message`, which follow each other, are one message: the same elements in the same order at each
  // rank, in one part at one rank and perhaps in several at another.
  std::vector<PlannedPart> held(uint32_t rank) const;
  // The ranks of a holder set, ascending.
  std::span<const uint32_t> holders(uint32_t set) const { return sets_[set].ranks; }

  uint32_t ranks() const { return static_cast<uint32_t>(kinds_.kind_of.size()); }
  uint32_t holder_sets() const { return static_cast<uint32_t>(sets_.size()); }
  // The bytes that each rank owns. Their sum is that of all different bytes.
  const std::vector<uint64_t>& loads() const { return loads_; }

 private:
  friend class PlanMaker;

  // A cell. Its holdings, one for each kind of its set, are at `holdings` in holdings_.
  struct PlacedCell {
    const uint64_t* box = nullptr;
    uint64_t holdings = 0;
    uint32_t tensor = 0;
    uint32_t set : 31 = 0;
    uint32_t is_cut : 1 = 0;
  };

  Plan() = default;
  // Indices in cells_, by tensor.
  std::span<const uint32_t> cells_of(uint32_t set) const;
  uint64_t elements_of(const PlacedCell& cell) const;
  unsigned element_size(const PlacedCell& cell) const;
  template <class Visit>
  void for_each_stretch(uint32_t set, const Visit& visit) const;
  std::vector<PlannedPart> parts(uint32_t rank, bool only_owned) const;
  void add_parts(const PlacedCell& cell, uint32_t kind, PlannedPart part, std::vector<PlannedPart>& parts) const;

  Kinds kinds_;
  CellCutter cutter_;                   // it owns the boxes of cells that are cut
  std::vector<PlacedCell> cells_;       // by tensor
  std::vector<uint32_t> cells_by_set_;  // by set, then by tensor
  std::vector<uint32_t> holdings_;
  std::vector<uint64_t> set_begins_;              // of each set, in cells_by_set_; and their end
  std::vector<std::vector<uint32_t>> set_kinds_;  // of each set, ascending
  std::vector<std::vector<uint32_t>> kind_sets_;  // of each kind, ascending
  std::vector<HolderSet> sets_;
  std::vector<uint64_t> loads_;
};

}  // namespace ckptfs::gpu
