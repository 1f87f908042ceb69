#include "meta/steps/tensor_maps.h"

#include <gtest/gtest.h>

#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {
namespace {

using formats::Dtype;
using formats::Parameter;
using formats::TensorMap;

TensorMap example() {
  TensorMap map;
  Parameter weight{"layers.0.weight", Parameter::Kind::frozen, 7, {}};
  weight.states["fp32"] = {Dtype::float32, {2, 3}, {{0, 8, 16}, {1, uint64_t{1} << 40, 8}}};
  weight.states["param"] = {Dtype::bfloat16, {2, 3}, {{1, 0, 12}}};
  Parameter dice{"dice", Parameter::Kind::other, std::nullopt, {}};
  dice.states["value"] = {Dtype::complex64, {}, {{0, 0, 8}}};
  map.parameters = {weight, dice};
  map.computes_in = Dtype::float16;
  map.tied = {{"head.weight", "layers.0.weight"}};
  map.undivided = {{3, 9, 2, "exp_avg", 1}};
  map.names_from = "/steps/global_step2";
  return map;
}

TEST(KeptMap, ComesBack) {
  const KeptMap kept{io::digest_of({}), example()};
  const std::string value = encode(kept);
  const auto back = decode_map(value);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(encode(back.value()), value);
  EXPECT_EQ(back.value().version, kept.version);
  const TensorMap& map = back.value().map;
  EXPECT_EQ(map.parameters[0].ds_id, 7U);
  EXPECT_EQ(map.parameters[0].states.at("fp32").pieces[1].offset, uint64_t{1} << 40);
  EXPECT_EQ(map.parameters[1].kind, Parameter::Kind::other);
  EXPECT_FALSE(map.parameters[1].ds_id);
  EXPECT_EQ(map.parameters[1].states.at("value").dtype, Dtype::complex64);
  EXPECT_EQ(map.computes_in, Dtype::float16);
  EXPECT_EQ(map.undivided[0].state, "exp_avg");
  for (size_t length = 0; length < value.size(); ++length) {
    EXPECT_FALSE(decode_map(value.substr(0, length))) << length;
  }
}

class TensorMaps : public ScratchStore {};

TEST_F(TensorMaps, AreKeptAsLongAsTheStep) {
  const InodeNumber step = make_folder("/steps/step1");
  const io::Digest version = io::digest_of({}), other = io::digest_of(std::as_bytes(std::span("x")));
  const auto kept = [&](const io::Digest& of, size_t files) { return kept_map(*store_, step, of, files).value(); };
  EXPECT_FALSE(kept(version, 2));
  ASSERT_TRUE(keep_map(*store_, step, version, example()));
  ASSERT_TRUE(kept(version, 2));
  EXPECT_EQ(kept(version, 2)->names_from, example().names_from);
  EXPECT_FALSE(kept(other, 2)) << "of other files";
  EXPECT_FALSE(kept(version, 1)) << "a piece of a file that is not there";
  TensorMap wrong = example();
  wrong.problems.push_back({"file", "damaged"});
  ASSERT_TRUE(keep_map(*store_, step, other, wrong));
  EXPECT_TRUE(kept(version, 2)) << "a map with problems takes the place of a whole one";
  ASSERT_TRUE(tree().remove_directory(at("/steps"), "step1"));
  EXPECT_FALSE(kept(version, 2));
  ASSERT_TRUE(keep_map(*store_, step, version, example()));
  EXPECT_FALSE(kept(version, 2)) << "of a step that is gone";
}

}  // namespace
}  // namespace ckptfs::meta
