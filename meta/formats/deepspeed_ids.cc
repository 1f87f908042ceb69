#include "meta/formats/deepspeed_ids.h"

#include <string>

#include "io/json.h"

namespace ckptfs::meta::formats {
namespace {

constexpr io::JsonBounds kIdsBounds{
    .bytes = uint64_t{16} << 20, .values = io::kAnyNumber, .text = uint64_t{64} << 10, .depth = 8};

class IdsReader : public io::JsonVisitor {
 public:
  explicit IdsReader(ParameterIds& ids) : ids_(ids) {}

  bool key(string_t& key) override {
    if (depth_ == 1) name_ = key;
    return true;
  }
  bool number_unsigned(number_unsigned_t id) override {
    const auto known = depth_ == 1 ? ids_.find(name_) : ids_.end();
    if (known != ids_.end()) known->second = id;
    return true;
  }

 private:
  bool begin(bool object) override {
    if (++depth_ == 1 && !object) return fails(Error(EBADMSG, "it is no map of names to numbers"));
    return true;
  }
  bool end() override {
    --depth_;
    return true;
  }

  ParameterIds& ids_;
  unsigned depth_ = 0;
  std::string name_;
};

}  // namespace

Result<> read_ids(const StepFiles& files, uint32_t index, ParameterIds& ids) {
  IdsReader reader(ids);
  const auto file = files.open(index);
  const uint64_t size = files.list()[index].size;
  return file ? io::read_json(files.limited(file.value()), 0, size, kIdsBounds, reader) : file.error();
}

}  // namespace ckptfs::meta::formats
