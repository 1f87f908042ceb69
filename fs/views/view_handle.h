// An open file of a view. The files of the step that it is made from count as open until it is closed, so that its
// content stays when the step is removed. Thread safety: all of it.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "fs/open_files.h"
#include "fs/views/views.h"

namespace ckptfs::fs {

class Filesystem;

class ViewHandle {
 public:
  ViewHandle(Filesystem& fs, std::shared_ptr<const views::StepView> view, views::NodeNumber node);
  ViewHandle(const ViewHandle&) = delete;
  ViewHandle& operator=(const ViewHandle&) = delete;
  ~ViewHandle();

  uint64_t size() const { return content_->size(); }
  // As Content::read; the error names the step's file.
  Result<size_t> read(std::span<std::byte> buffer, uint64_t offset) const;

 private:
  Filesystem& fs_;
  const std::shared_ptr<const views::StepView> view_;
  const std::shared_ptr<const views::Content> content_;
  std::unordered_map<uint32_t, std::shared_ptr<OpenFile>> files_;  // by their index in the view
};

}  // namespace ckptfs::fs
