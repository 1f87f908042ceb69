// From the path or the address of a checkpoint to where its bytes come from. Stateless; any thread.
#pragma once

#include <memory>
#include <string>

#include "gpu/step_source.h"
#include "io/result.h"

namespace ckptfs::gpu {

// `path`: of a folder or a file, or the address of a step in a remote (meta/remote/address.h). A step's folder in a
// remote mount is read from the remote itself, not through the mount, if that can be opened from here.
Result<std::unique_ptr<StepSource>> open_source(const std::string& path, const RemoteWait& wait);

}  // namespace ckptfs::gpu
