#include "meta/formats/torch_file.h"

#include <array>

#include "io/fd.h"
#include "meta/formats/pickle_access.h"

namespace ckptfs::meta::formats {
namespace {

using Value = Pickle::Value;
using Kind = Pickle::Kind;

constexpr unsigned kMostWrappings = 8;

Error bad_tensor(const std::string& what) { return Error(EBADMSG, "a tensor that cannot be one: " + what); }

// A call by which the pickle makes a tensor.
struct Call {
  std::string name;
  Value arguments;
};

std::optional<Call> call_of(const Value& value) {
  const auto arguments = value.arguments();
  if (!arguments) return std::nullopt;
  return Call{value.name(), *arguments};
}

struct Unwrapped {
  std::optional<Call> call;
  std::optional<Value> attributes;
};

// Returns the call inside those that only wrap a tensor: a Parameter, or attributes.
Result<Unwrapped> unwrap(const Value& value) {
  Unwrapped found{call_of(value), std::nullopt};
  for (unsigned depth = 0; found.call; ++depth) {
    if (depth == kMostWrappings) return bad_tensor("it is wrapped too often");
    const auto [name, arguments] = *found.call;
    const bool parameter_with_state = name == "torch._utils._rebuild_parameter_with_state";
    const bool typed = name == "torch._tensor._rebuild_from_type_v2";
    if (!parameter_with_state && !typed && name != "torch._utils._rebuild_parameter") break;
    if (arguments.size() < (parameter_with_state || typed ? 4 : 1)) return bad_tensor("a parameter without data");
    if (parameter_with_state || typed) found.attributes = arguments[3];
    found.call = typed ? Call{arguments[0].name(), arguments[2]} : call_of(arguments[0]);
  }
  return found;
}

struct Storage {
  std::optional<Dtype> dtype;  // empty: untyped, and `count` is in bytes
  std::string key;
  uint64_t count = 0;
};

// Parses ('storage', torch.FloatStorage, '0', 'cpu', 4096).
Result<Storage> storage_of(const Value& value) {
  const auto id = value.id();
  if (!id || id->size() < 5 || (*id)[0].text() != "storage") return bad_tensor("it has no storage");
  Storage storage;
  const std::string type = (*id)[1].name();
  const size_t dot = type.rfind('.');
  const std::string_view class_name = std::string_view(type).substr(dot == std::string::npos ? 0 : dot + 1);
  storage.dtype = dtype_of_storage(class_name);
  if (!storage.dtype && class_name != "UntypedStorage") {
    return Error(ENOTSUP, "a tensor in a storage of type " + type + " is not read");
  }
  const auto key = short_text((*id)[2]);
  const auto count = (*id)[4].integer();
  if (!key || !count || *count < 0) return bad_tensor("its storage has no key or no length");
  storage.key = *key;
  storage.count = static_cast<uint64_t>(*count);
  return storage;
}

// Returns the index after the last element of the storage that the tensor uses.
Result<uint64_t> end_of(const TorchTensor& tensor) {
  if (tensor.shape.size() != tensor.strides.size()) return bad_tensor("it has not one stride for each length");
  uint64_t elements = 1, end = tensor.first;
  for (size_t at = 0; at < tensor.shape.size(); ++at) {
    const uint64_t length = tensor.shape[at];
    if (length == 0) return tensor.first;
    const uint64_t stride = tensor.strides[at];
    if (length > kMostElements / elements || (stride != 0 && length - 1 > kMostElements / stride)) {
      return bad_tensor("it is too large");
    }
    elements *= length;
    end += (length - 1) * stride;
    if (end >= kMostElements) return bad_tensor("it is too large");
  }
  return end + 1;
}

// Returns the dtype of a tensor in an untyped storage, from an argument such as "torch.float8_e4m3fn".
std::optional<Dtype> named_dtype(const Call& call) {
  constexpr size_t where = 6;
  return call.arguments.size() > where ? dtype_of_torch(call.arguments[where].name()) : std::nullopt;
}

Result<TorchTensor> build(const Call& call, std::optional<Value> attributes) {
  const Value& arguments = call.arguments;
  if (arguments.size() < 4) return bad_tensor("it has no shape");
  TRY_ASSIGN(Storage storage, storage_of(arguments[0]));
  const auto first = arguments[1].integer();
  if (!first || *first < 0 || static_cast<uint64_t>(*first) >= kMostElements) return bad_tensor("it begins nowhere");
  const bool untyped = call.name == "torch._utils._rebuild_tensor_v3";
  const auto dtype = untyped ? named_dtype(call) : storage.dtype;
  if (!dtype) return Error(ENOTSUP, "a tensor of a type that is not known");
  if (!storage.dtype) storage.count /= size_of(*dtype);
  TorchTensor tensor;
  tensor.dtype = *dtype;
  tensor.storage = std::move(storage.key);
  tensor.first = static_cast<uint64_t>(*first);
  tensor.attributes = attributes;
  auto shape = numbers_of(arguments[2]), strides = numbers_of(arguments[3]);
  if (!shape || !strides) return bad_tensor("it has too many lengths or strides, or one that is no number from 0 up");
  tensor.shape = *std::move(shape);
  tensor.strides = *std::move(strides);
  TRY_ASSIGN(const uint64_t end, end_of(tensor));
  if (end > storage.count) return bad_tensor("it reaches past the end of its storage");
  return tensor;
}

// torch before 1.6 wrote no zip but a sequence of pickles.
bool is_old_format(const io::LimitedFile& file, const FileRange& part) {
  std::array<std::byte, 2> begin{};
  const auto got = file.read_full(begin, part.offset);
  return got && got.value() == begin.size() && begin[0] == std::byte{0x80} && begin[1] <= std::byte{5};
}

}  // namespace

bool TorchTensor::is_contiguous() const {
  uint64_t expected = 1;
  for (size_t at = shape.size(); at > 0; --at) {
    if (shape[at - 1] == 0) return true;
    if (shape[at - 1] != 1 && strides[at - 1] != expected) return false;
    expected *= shape[at - 1];
  }
  return true;
}

TorchFile::TorchFile(ZipArchive archive, std::string folder, Pickle pickle)
    : archive_(std::move(archive)),
      folder_(std::move(folder)),
      pickle_(std::make_unique<const Pickle>(std::move(pickle))) {}

Result<TorchFile> TorchFile::open(const io::LimitedFile& file) {
  TRY_ASSIGN(const uint64_t size, file.size());
  return open(file, FileRange{0, size});
}

Result<TorchFile> TorchFile::open(const io::LimitedFile& file, const FileRange& part, uint64_t most) {
  if (is_old_format(file, part))
    return Error(ENOTSUP, "what torch wrote before 1.6 (no zip) is not read: save it again");
  TRY_ASSIGN(auto archive, ZipArchive::open(file, part));
  constexpr std::string_view pickle_name = "/data.pkl";
  for (uint64_t entry = 0; entry < archive.entries(); ++entry) {
    const std::string_view name = archive.name(entry);
    if (!name.ends_with(pickle_name) || name.find('/') != name.size() - pickle_name.size()) continue;
    std::string folder(name.substr(0, name.find('/') + 1));
    if (const auto order = archive.find(folder + "byteorder")) {
      TRY_ASSIGN(const std::string value, archive.read(*order, 16));
      if (value != "little") return Error(ENOTSUP, "its numbers are " + value + "-endian, which is not read");
    }
    TRY_ASSIGN(std::string bytes, archive.read(entry, most));
    TRY_ASSIGN(Pickle pickle, read_pickle(std::move(bytes)));
    return TorchFile(std::move(archive), std::move(folder), std::move(pickle));
  }
  return Error(EBADMSG, "a zip, but not of torch.save: it has no data.pkl");
}

Result<std::optional<TorchTensor>> TorchFile::tensor(const Value& value) {
  TRY_ASSIGN(const auto unwrapped, unwrap(value));
  const auto& call = unwrapped.call;
  constexpr std::string_view makers = "torch._utils._rebuild_";
  if (!call || !call->name.starts_with(makers)) return std::optional<TorchTensor>();
  const std::string_view maker = std::string_view(call->name).substr(makers.size());
  if (maker != "tensor_v2" && maker != "tensor_v3" && maker != "tensor") {
    return Error(ENOTSUP, "a tensor made by " + call->name + " is not read");
  }
  TRY_ASSIGN(TorchTensor tensor, build(*call, unwrapped.attributes));
  return std::optional(std::move(tensor));
}

Result<FileRange> TorchFile::range(const TorchTensor& tensor) {
  if (!tensor.is_contiguous()) return Error(ENOTSUP, "a tensor whose elements do not lie in order");
  const auto entry = archive_.find(folder_ + "data/" + tensor.storage);
  if (!entry) return Error(EBADMSG, "there is no storage " + tensor.storage);
  auto known = places_.find(*entry);
  if (known == places_.end()) {
    TRY_ASSIGN(const FileRange place, archive_.range(*entry));
    known = places_.emplace(*entry, place).first;
  }
  const FileRange& storage = known->second;
  const uint64_t size = size_of(tensor.dtype);
  const uint64_t offset = tensor.first * size, bytes = tensor.elements() * size;
  if (offset > storage.size || bytes > storage.size - offset) {
    return bad_tensor("storage " + tensor.storage + " is shorter than the tensor");
  }
  return FileRange{storage.offset + offset, bytes};
}

}  // namespace ckptfs::meta::formats
