#include "tests/meta/scratch_store.h"

namespace ckptfs::meta {

ImageEnvironment& image_environment() {
  static auto* environment = dynamic_cast<ImageEnvironment*>(testing::AddGlobalTestEnvironment(new ImageEnvironment));
  return *environment;
}

// Registered before main() runs the tests.
const ImageEnvironment& kRegistered = image_environment();

}  // namespace ckptfs::meta
