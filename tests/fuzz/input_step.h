// A fuzzer's input as the files of a step, and the checks for whatever a reader returns for it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "meta/formats/box.h"
#include "meta/formats/completeness_facts.h"
#include "meta/formats/tensor_map.h"
#include "tests/fuzz/input_file.h"

namespace ckptfs {

class InputStep : public meta::formats::StepFiles {
 public:
  void add(const std::string& path, std::span<const uint8_t> content) {
    files_.push_back({path, content.size()});
    descriptors_.push_back(input_file(content.data(), content.size()));
  }
  const std::vector<File>& list() const override { return files_; }
  Result<io::ReadableFile> open(uint32_t index) const override {
    return io::ReadableFile(io::Fd(::dup(descriptors_[index].get())));
  }

 private:
  std::vector<File> files_;
  std::vector<io::Fd> descriptors_;
};

// Every tensor must be within the files, and must have the length that its shape requires.
inline void check(const InputStep& step, const meta::formats::TensorMap& map) {
  for (const auto& parameter : map.parameters) {
    for (const auto& [state, tensor] : parameter.states) {
      uint64_t size = 0;
      const auto add = [&](const meta::formats::Piece& piece) {
        const uint64_t whole = step.list().at(piece.file).size;
        if (piece.offset > whole || piece.size > whole - piece.offset) std::abort();
        size += piece.size;
      };
      for (const auto& piece : tensor.pieces) add(piece);
      for (const auto& [box, piece] : tensor.boxes) {
        if (!lies_within(box, tensor.shape)) std::abort();
        if (*meta::formats::elements_of(box.sizes) * size_of(tensor.dtype) != piece.size) std::abort();
        add(piece);
      }
      if (meta::formats::elements_of(tensor.shape).value() * size_of(tensor.dtype) != size) std::abort();
    }
  }
}

// What the files tell of a step that lies on two machines must come back from its JSON, and can be judged.
inline void check_facts(const InputStep& step, const meta::formats::TensorMap& map) {
  const auto facts = meta::formats::completeness_facts(step, map);
  const std::string text = json_of(facts).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto back = meta::formats::facts_of(nlohmann::json::parse(text));
  if (!back) std::abort();
  judge_together({&facts, &back.value()}, step.list());
}

}  // namespace ckptfs
