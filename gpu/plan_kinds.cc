#include "gpu/plan_kinds.h"

#include <cerrno>
#include <unordered_map>
#include <utility>

namespace ckptfs::gpu {
namespace {

constexpr uint64_t kMostCoordinates = uint64_t{1} << 28;  // of all kinds: 2 GiB

Error of_rank(uint32_t rank, const Error& error) { return with_name("rank " + std::to_string(rank), error); }

std::string type_of(meta::formats::Dtype dtype, const meta::formats::Shape& shape) {
  return std::string(meta::formats::safetensors_name(dtype)) + " " + text_of(shape);
}

class KindReader {
 public:
  Result<> add(uint32_t rank, std::string_view description) {
    const auto [found, is_new] = kinds_.try_emplace(description, static_cast<uint32_t>(read_.kinds.size()));
    if (is_new) {
      auto kind = read(rank, description);
      if (!kind) return std::move(kind).error();
      read_.kinds.push_back(std::move(kind).value());
    }
    read_.kind_of.push_back(found->second);
    read_.kinds[found->second].ranks.push_back(rank);
    return success();
  }

  Kinds take() { return std::move(read_); }

 private:
  struct Table {
    const std::vector<DescribedTensor>* tensors = nullptr;
    std::vector<uint32_t> indices;  // in Kinds::tensors
  };

  Result<Kind> read(uint32_t rank, std::string_view description) {
    auto sections = sections_of(description);
    if (!sections) return of_rank(rank, sections.error());
    TRY_ASSIGN(const Table* const table, this->table(rank, sections.value().table));
    auto boxes = read_boxes(sections.value().boxes, *table->tensors, room_);
    if (!boxes) return of_rank(rank, boxes.error());
    for (DescribedBox& one : boxes.value().boxes) one.tensor = table->indices[one.tensor];
    return Kind{{}, std::move(boxes).value()};
  }

  Result<const Table*> table(uint32_t rank, std::string_view bytes) {
    const auto known = tables_.find(bytes);
    if (known != tables_.end()) return &known->second;
    auto tensors = read_table(bytes);
    if (!tensors) return of_rank(rank, tensors.error());
    Table table;
    for (const DescribedTensor& tensor : tensors.value()) {
      TRY_ASSIGN(const uint32_t index, this->tensor(rank, tensor));
      table.indices.push_back(index);
    }
    const auto& kept =
        read_.tables.emplace_back(std::make_unique<const std::vector<DescribedTensor>>(std::move(tensors).value()));
    table.tensors = kept.get();
    return &tables_.emplace(bytes, std::move(table)).first->second;
  }

  Result<uint32_t> tensor(uint32_t rank, const DescribedTensor& described) {
    const auto [found, is_new] = tensors_.try_emplace(described.name, static_cast<uint32_t>(read_.tensors.size()));
    if (is_new) {
      read_.tensors.push_back({std::string(described.name), described.dtype, described.shape, rank});
      return found->second;
    }
    const GroupTensor& known = read_.tensors[found->second];
    if (known.dtype == described.dtype && known.shape == described.shape) return found->second;
    return Error(EINVAL, known.name + ": rank " + std::to_string(known.rank) + " holds it as " +
                             type_of(known.dtype, known.shape) + ", rank " + std::to_string(rank) + " as " +
                             type_of(described.dtype, described.shape));
  }

  Kinds read_;
  uint64_t room_ = kMostCoordinates;
  // The keys are parts of the descriptions.
  std::unordered_map<std::string_view, uint32_t> kinds_;
  std::unordered_map<std::string_view, Table> tables_;
  std::unordered_map<std::string_view, uint32_t> tensors_;
};

}  // namespace

Result<Kinds> read_kinds(std::span<const std::string_view> descriptions) {
  KindReader reader;
  for (size_t rank = 0; rank < descriptions.size(); ++rank) TRY(reader.add(rank, descriptions[rank]));
  return reader.take();
}

std::string text_of(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (const uint64_t size : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(size);
  return text + "]";
}

}  // namespace ckptfs::gpu
