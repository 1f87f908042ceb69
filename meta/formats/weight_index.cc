#include "meta/formats/weight_index.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "io/json.h"
#include "meta/formats/file_kinds.h"

namespace ckptfs::meta::formats {
namespace {

constexpr std::string_view kIndexEnding = ".index.json";
constexpr io::JsonBounds kIndexBounds{
    .bytes = uint64_t{16} << 20, .values = io::kAnyNumber, .text = uint64_t{64} << 10, .depth = 16};
constexpr size_t kMostShards = size_t{1} << 16;

class IndexReader : public io::JsonVisitor {
 public:
  bool string(string_t& file) override {
    if (depth_ != 2 || !in_map_) return true;
    files.insert(file);
    return files.size() <= kMostShards || fails(Error(EFBIG, "it names more files than any checkpoint has"));
  }

  std::set<std::string> files;
  bool is_index = false;

 private:
  bool begin(bool object) override {
    if (depth_ == 2) in_map_ = object && key_ == "weight_map";
    is_index = is_index || in_map_;
    return true;
  }

  bool in_map_ = false;
};

bool is_plain_path(std::string_view path) {
  return !path.empty() && path.front() != '/' && path.find("./") == std::string_view::npos;
}

// Weights that the index does not name: a converter may have left the index behind.
bool has_other_weights(const std::set<std::string_view>& paths, const std::string& folder,
                       const std::set<std::string>& named) {
  return std::ranges::any_of(paths, [&](std::string_view path) {
    const std::string_view name = path.starts_with(folder) ? path.substr(folder.size()) : std::string_view();
    const bool weights =
        name.ends_with(".safetensors") || (name.ends_with(".bin") && name.starts_with("pytorch_model"));
    return weights && name.find('/') == name.npos && !named.contains(std::string(path));
  });
}

}  // namespace

Result<std::set<std::string>> files_of_index(const StepFiles& files, uint32_t index) {
  TRY_ASSIGN(const io::ReadableFile file, files.open(index));
  IndexReader reader;
  TRY(io::read_json(files.limited(file), 0, files.list()[index].size, kIndexBounds, reader));
  if (!reader.is_index) return Error(EBADMSG, "it is no index of weights");
  return std::move(reader.files);
}

void check_weight_indexes(const StepFiles& files, bool in_folders, ShareCheck& share) {
  std::set<std::string_view> there;
  for (const StepFiles::File& file : files.list()) there.insert(file.path);
  for (uint32_t index = 0; index < files.list().size(); ++index) {
    const std::string& path = files.list()[index].path;
    const bool is_index = kind_of(path).role == FileRole::weights_index && lies_at_top(path) != in_folders;
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    if (!is_index || there.contains(path.substr(0, path.size() - kIndexEnding.size()))) continue;
    const auto named = files_of_index(files, index);
    if (!named) {
      share.add_unclear(path + ": " + named.error().message());
      continue;
    }
    std::set<std::string> demanded;
    for (const std::string& name : named.value()) demanded.insert(folder + name);
    const bool others = has_other_weights(there, folder, demanded);
    for (const std::string& name : demanded) {
      if (there.contains(name)) continue;
      if (others || !is_plain_path(name)) {
        share.add_unclear(name + " is not there, and " + path + " names it");
      } else {
        share.add_missing({name});
      }
    }
  }
}

}  // namespace ckptfs::meta::formats
