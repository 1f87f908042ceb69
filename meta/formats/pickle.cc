#include "meta/formats/pickle.h"

namespace ckptfs::meta::formats {

using Kind = Pickle::Kind;

Kind Pickle::Value::kind() const { return pickle_->nodes_[index_].kind; }

std::optional<bool> Pickle::Value::boolean() const {
  if (kind() != Kind::boolean) return std::nullopt;
  return pickle_->nodes_[index_].payload != 0;
}

std::optional<int64_t> Pickle::Value::integer() const {
  if (kind() != Kind::integer) return std::nullopt;
  return static_cast<int64_t>(pickle_->nodes_[index_].payload);
}

std::optional<std::string_view> Pickle::Value::text() const {
  if (kind() != Kind::text) return std::nullopt;
  const Node& node = pickle_->nodes_[index_];
  return std::string_view(pickle_->bytes_->data() + node.where, node.payload);
}

std::span<const uint32_t> Pickle::Value::items() const {
  const Node& node = pickle_->nodes_[index_];
  if (node.kind == Kind::tuple) return std::span(pickle_->tuples_).subspan(node.where, node.payload);
  const Growing* const growing = Pickle::growing(*pickle_, index_);
  return growing == nullptr ? std::span<const uint32_t>() : growing->items;
}

size_t Pickle::Value::size() const {
  const bool counts = kind() == Kind::list || kind() == Kind::tuple || kind() == Kind::set;
  return counts ? items().size() : 0;
}

Pickle::Value Pickle::Value::operator[](size_t index) const { return {pickle_, items()[index]}; }

size_t Pickle::Value::pairs() const { return kind() == Kind::dict || kind() == Kind::object ? items().size() / 2 : 0; }

std::pair<Pickle::Value, Pickle::Value> Pickle::Value::pair(size_t index) const {
  const auto all = items();
  return {{pickle_, all[2 * index]}, {pickle_, all[2 * index + 1]}};
}

std::optional<Pickle::Value> Pickle::Value::find(std::string_view key) const {
  for (size_t at = pairs(); at > 0; --at) {
    const auto [name, value] = pair(at - 1);
    if (name.text() == key) return value;
  }
  return std::nullopt;
}

std::string Pickle::Value::name() const {
  const Node* node = &pickle_->nodes_[index_];
  if (node->kind == Kind::object) node = &pickle_->nodes_[pickle_->objects_[node->where].callable];
  if (node->kind != Kind::global) return {};
  const Global& global = pickle_->globals_[node->where];
  return std::string(global.module) + '.' + std::string(global.name);
}

std::optional<Pickle::Value> Pickle::Value::arguments() const {
  if (kind() != Kind::object) return std::nullopt;
  return Value(pickle_, pickle_->objects_[pickle_->nodes_[index_].where].arguments);
}

std::optional<Pickle::Value> Pickle::Value::state() const {
  const Growing* const growing = Pickle::growing(*pickle_, index_);
  if (growing == nullptr || !growing->state) return std::nullopt;
  return Value(pickle_, *growing->state);
}

std::optional<Pickle::Value> Pickle::Value::id() const {
  if (kind() != Kind::persistent) return std::nullopt;
  return Value(pickle_, pickle_->nodes_[index_].where);
}

}  // namespace ckptfs::meta::formats
