// From the address of a remote to its store.
#pragma once

#include <memory>
#include <string>

#include "io/objects/object_store.h"
#include "io/objects/s3_settings.h"
#include "io/result.h"

namespace ckptfs::io {

// `url`: "s3://BUCKET/PREFIX" or "file:///FOLDER". EINVAL, in words, for anything else. Nothing is asked of it yet.
Result<std::unique_ptr<ObjectStore>> open_object_store(const std::string& url, const S3Settings& settings);

}  // namespace ckptfs::io
