#include "meta/tree/unpublished.h"

#include "io/log.h"

namespace ckptfs::meta {

Result<std::vector<BlobNumber>> promise_blobs(Tree& tree, size_t count) {
  Tree::Change change = tree.begin();
  std::vector<BlobNumber> blobs = change.promise_blobs(count);
  TRY(tree.commit(std::move(change)));
  return blobs;
}

void doom_unpublished(Tree& tree, std::span<const BlobNumber> blobs, const char* what) {
  if (blobs.empty()) return;
  Tree::Change change = tree.begin();
  for (const BlobNumber blob : blobs) {
    change.batch.put_blob(blob, {.state = BlobState::doomed, .references = 0});
    change.doomed.push_back(blob);
  }
  if (const auto done = tree.commit(std::move(change)); !done) {
    log::warn("{} stay until the next mount: {}", what, done.error().message());
  }
}

}  // namespace ckptfs::meta
