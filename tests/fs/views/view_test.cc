// Who may see what of a view: files determine the names and sizes in it, too.
#include "fs/views/view.h"

#include <gtest/gtest.h>

namespace ckptfs::fs::views {
namespace {

using meta::formats::Parameter;

constexpr Access kOpen{1000, 1000, 0644};
constexpr Access kPrivate{1000, 1000, 0600};

Source source_of(const Access& first, const Access& second) {
  Source source;
  source.files = {{"model.safetensors", 100}, {"offloaded_tensors/rank00/0_0.tensor.swp", 100}};
  source.access = {first, second};
  source.digests = {"", ""};
  source.folder = {1000, 1000, 0555};
  source.version = "1";
  Parameter parameter;
  parameter.name = "secret.weight";
  parameter.ds_id = 3;
  parameter.states["param"] = {Dtype::float32, {2}, {{0, 0, 8}}};
  parameter.states["fp32"] = {Dtype::float32, {2}, {{1, 0, 8}}};
  source.map.parameters = {parameter};
  source.map.tied = {{"other.weight", "secret.weight"}};
  return source;
}

std::string shown(const View& view, const std::string& path) {
  NodeNumber at = 0;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const auto& children = view.node(at)->children;
    const auto child = children.find(path.substr(begin, end - begin));
    if (child == children.end()) return "nothing";
    at = child->second;
    begin = end + 1;
  }
  const Access& access = view.node(at)->access;
  char text[40];
  std::snprintf(text, sizeof text, "%u %o", access.uid, access.mode);
  return text;
}

TEST(ViewTest, WhatAllMayReadAllMaySee) {
  const View view(source_of(kOpen, kOpen));
  for (const char* folder : {"by_name", "by_name/secret.weight", "tensors"}) EXPECT_EQ(shown(view, folder), "1000 555");
  for (const char* file : {"by_name/secret.weight/param", "model.fp32.safetensors", "manifest.json"}) {
    EXPECT_EQ(shown(view, file), "1000 444") << file;
  }
}

// A program would take one of them, and nobody knows which.
TEST(ViewTest, OfTwoOfOneNameThereIsNoModel) {
  Source source = source_of(kOpen, kOpen);
  source.map.parameters.push_back(source.map.parameters.front());
  EXPECT_EQ(shown(View(std::move(source)), "model.fp32.safetensors"), "nothing");
}

TEST(ViewTest, NamesAndSizesAreForThoseWhoMayReadTheFiles) {
  for (const auto& [first, second] : {std::pair(kPrivate, kOpen), std::pair(kOpen, kPrivate)}) {
    const View view(source_of(first, second));
    EXPECT_EQ(shown(view, ""), "1000 555");
    for (const char* folder : {"by_name", "by_name/secret.weight", "tensors"}) {
      EXPECT_EQ(shown(view, folder), "1000 500") << folder;
    }
    for (const char* file : {"model.fp32.safetensors", "manifest.json"}) {
      EXPECT_EQ(shown(view, file), "1000 400") << file;
    }
  }
}

TEST(ViewTest, OfFilesOfSeveralOwnersRootAloneSeesNames) {
  const View view(source_of(kPrivate, {1001, 1001, 0600}));
  EXPECT_EQ(shown(view, "by_name"), "0 500");
  EXPECT_EQ(shown(view, "manifest.json"), "0 400");
}

// A member of one group may not read what only the other one may.
TEST(ViewTest, OfFilesOfSeveralGroupsRootAloneSeesNames) {
  const View view(source_of({1000, 1000, 0640}, {1000, 1001, 0640}));
  EXPECT_EQ(shown(view, "by_name"), "0 500");
  EXPECT_EQ(shown(view, "manifest.json"), "0 400");
}

TEST(ViewTest, NamesThatAnotherStepToldAreTheOwners) {
  Source source = source_of(kOpen, kOpen);
  source.map.names_from = "/steps/other";
  const View view(std::move(source));
  EXPECT_EQ(shown(view, "by_name"), "1000 500");
  EXPECT_EQ(shown(view, "model.fp32.safetensors"), "1000 400");
}

TEST(ViewTest, GroupsAreForThoseWhoMayReadTheSwapFiles) {
  Source source = source_of(kOpen, kPrivate);
  source.map.parameters.clear();
  source.map.tied.clear();
  source.map.undivided = {{0, 3, 0, "fp32", 1}};
  const View view(std::move(source));
  for (const char* folder : {"groups", "groups/0_3", "groups/0_3/rank00"}) {
    EXPECT_EQ(shown(view, folder), "1000 500") << folder;
  }
}

}  // namespace
}  // namespace ckptfs::fs::views
