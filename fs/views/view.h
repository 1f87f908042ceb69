// The view of one step: a tree of virtual files made from its tensor map.
//
//   by_name/<parameter>/{fp32,exp_avg,exp_avg_sq,param}   one tensor, ranks joined, little-endian
//   by_name/<second name> -> <parameter>                  tied parameters
//   tensors/<ds_id> -> ../by_name/<parameter>
//   groups/<first>_<last>/rank<NN>/<state>                what only swap files tell, with their padding
//   model.{fp32,bf16,fp16}.safetensors                    in shards with an index from 5 GB up, as HF reads them
//   model.safetensors -> the one in the type that the model computes in
//   config.json, tokenizer files                          as they lie in the step
//   manifest.json
//
// A node's number comes from its path and the view's version. So the number stays over mounts as long as the step's
// files stay. Other bytes have another inode number, so that no cache of the kernel mixes two versions. A node of a
// tensor keeps only its place in the map. Contents are made when they are opened.
//
// Thread safety: constant once built.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fs/views/content.h"
#include "fs/views/numbers.h"
#include "meta/formats/tensor_map.h"

namespace ckptfs::fs::views {

// Who may read a file or a folder, or all files that something is made from.
struct Access {
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t mode = 0;  // permission bits
};

// The types of models that a view offers.
struct ModelType {
  const char* name;
  Dtype dtype;
};
inline constexpr std::array kModelTypes{ModelType{"fp32", Dtype::float32}, ModelType{"bf16", Dtype::bfloat16},
                                        ModelType{"fp16", Dtype::float16}};

// What a view is made from.
struct Source {
  std::vector<meta::formats::StepFiles::File> files;
  std::vector<Access> access;        // of each file
  std::vector<std::string> digests;  // of each file, in hexadecimal (meta/care/digests.h); empty: not known
  Access folder;                     // of the step
  std::string version;               // another one if anything of the above is another
  meta::formats::TensorMap map;
};

class View {
 public:
  enum class Kind : uint8_t { directory, tensor, model, whole_file, text, link };
  struct Node {
    Kind kind = Kind::directory;
    Access access;
    uint64_t size = 0;
    std::map<std::string, NodeNumber> children;  // directory
    const Tensor* tensor = nullptr;              // tensor
    size_t which = 0;                            // model: its index in models_; whole_file: of the step's files
    std::shared_ptr<const std::string> text;     // text; link: its target
  };

  explicit View(Source source);
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  // Node 0 is the view's own directory. Null: there is no such node (any more).
  const Node* node(NodeNumber number) const;
  Content content(const Node& node) const;
  // Does content() return at once? It does not if it writes a header of many tensors.
  bool makes_quickly(const Node& node) const;
  const Source& source() const { return source_; }
  // About how many bytes of memory the view takes.
  size_t memory() const { return memory_; }
  static mode_t type_of(const Node& node);

 private:
  struct Weight {
    const std::string* name = nullptr;
    const Tensor* tensor = nullptr;
    Dtype own = Dtype::float32;  // the type that it has in the model
  };
  // One safetensors file: all weights, or a shard of them.
  struct Model {
    Dtype dtype = Dtype::float32;
    std::vector<Weight> weights;
    uint64_t begin = 0;  // where the data begins within a block
  };

  NodeNumber add(NodeNumber parent, const std::string& name, Node node);
  NodeNumber folder(NodeNumber parent, const std::string& name);
  void add_link(NodeNumber parent, const std::string& name, const std::string& target);
  void add_text(const std::string& name, std::string text, const Access& access);
  void add_file(NodeNumber parent, const std::string& name, size_t index);
  void add_by_name();
  void add_groups();
  void add_models();
  void add_model(const std::string& type, Dtype dtype, const std::vector<Weight>& weights);
  void add_shard(const std::string& name, Dtype dtype, std::span<const Weight> weights);
  std::string header_of(const Model& model) const;
  void add_model_files();
  void add_manifest();
  // The weights of a whole model. Empty, with the reason in problems_: not every parameter has weights.
  std::vector<Weight> weights();
  Dtype compute_type(const std::vector<Weight>& weights) const;
  Dtype type_in(const Weight& weight, Dtype model) const;
  Access access_of(const std::vector<Piece>& pieces) const;
  Access access_of_names() const;
  void measure();

  const Source source_;
  const Access names_;                  // who may know the names and sizes of the tensors
  Dtype computes_in_ = Dtype::float32;  // the model; known once there are weights
  std::unordered_map<NodeNumber, Node> nodes_;
  std::unordered_map<NodeNumber, std::string> paths_;  // while it is built
  std::vector<Model> models_;
  size_t memory_ = 0;
  std::vector<meta::formats::Problem> problems_;  // while it is built; of the map, and of the view
};

// May everybody who may read what has `access` also read the file?
bool covers(const Access& file, const Access& access);

// Makes a file name out of any name. '/', '%' and control characters are written as %XX.
std::string file_name_of(const std::string& name);

}  // namespace ckptfs::fs::views
