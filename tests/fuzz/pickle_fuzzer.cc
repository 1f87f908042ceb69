// Any bytes as a pickle; what can be read is walked to a bounded depth, as its readers do.
#include "meta/formats/pickle.h"

#include <string>

namespace {

using ckptfs::meta::formats::Pickle;

size_t budget = 0;

void walk(const Pickle::Value& value, unsigned depth) {
  if (depth == 0 || budget == 0) return;
  --budget;
  (void)value.text();
  (void)value.name();
  (void)value.find("key");
  for (size_t at = 0; at < value.size(); ++at) walk(value[at], depth - 1);
  for (size_t at = 0; at < value.pairs(); ++at) {
    walk(value.pair(at).first, depth - 1);
    walk(value.pair(at).second, depth - 1);
  }
  for (const auto& part : {value.arguments(), value.state(), value.id()}) {
    if (part) walk(*part, depth - 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto pickle = ckptfs::meta::formats::read_pickle(std::string(reinterpret_cast<const char*>(data), size));
  budget = 10000;
  if (pickle) walk(pickle.value().root(), 16);
  return 0;
}
