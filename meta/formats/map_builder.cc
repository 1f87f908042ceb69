#include "meta/formats/map_builder.h"

#include <utility>

namespace ckptfs::meta::formats {

void MapBuilder::problem(std::optional<uint32_t> file, const std::string& reason, Problem::Kind kind) {
  const Problem found{file ? files_.list()[*file].path : std::string(), reason, kind};
  const bool first = kind != Problem::Kind::left_out && !std::exchange(told_[static_cast<size_t>(kind)], true);
  if (map_.problems.size() < kMostProblems) {
    map_.problems.push_back(found);
  } else if (first) {
    map_.problems.back() = found;  // so that there is one problem of each kind that matters
  }
}

void MapBuilder::with_file(uint32_t index, const std::function<void(TorchFile&)>& with) {
  const auto descriptor = files_.open(index);
  if (!descriptor) return problem(index, descriptor.error().message());
  auto file = TorchFile::open(files_.limited(descriptor.value()));
  if (file) return with(file.value());
  const bool is_cut = file.error().errno_value() == ENODATA;
  problem(index, file.error().message(), is_cut ? Problem::Kind::missing : Problem::Kind::unreadable);
}

std::optional<Flat> MapBuilder::flat_of(uint32_t index, TorchFile& file, const Pickle::Value& value,
                                        const std::string& what) {
  const auto tensor = TorchFile::tensor(value);
  if (!tensor || !tensor.value()) {
    problem(index, what + ": " + (tensor ? "not a tensor" : tensor.error().message()));
    return std::nullopt;
  }
  const auto range = file.range(*tensor.value());
  if (!range) {
    problem(index, what + ": " + range.error().message());
    return std::nullopt;
  }
  return Flat{{index, range.value().offset, range.value().size}, tensor.value()->dtype};
}

bool MapBuilder::add_whole(std::string_view name, Parameter::Kind kind, Tensor tensor) {
  if (!given_up_ && !budget_.add(map_, name, std::move(tensor), kind)) give_up(std::nullopt, kTooManyTensors);
  return !given_up_;
}

std::optional<Tensor> MapBuilder::whole(uint32_t index, TorchFile& file, const Pickle::Value& value,
                                        const std::string& what) {
  const auto flat = flat_of(index, file, value, what);
  if (!flat) return std::nullopt;
  return Tensor{flat->dtype, TorchFile::tensor(value).value()->shape, {flat->piece}};
}

}  // namespace ckptfs::meta::formats
