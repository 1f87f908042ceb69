// What S3 servers say in XML: lists of objects, and errors. Read by expat, as the bytes come; depth and length of what
// is kept are bounded. Stateless; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/objects/object_store.h"
#include "io/result.h"

namespace ckptfs::io {

// The answer to ListObjectsV2; keys are whole, with the store's prefix. EPROTO if it is none, or is cut short.
Result<ObjectPage> read_s3_list(std::string_view xml);

struct S3Failure {
  std::string code, message, region;  // empty where it does not say
};

// Of whatever a server sends with an error.
S3Failure read_s3_failure(std::string_view xml);

}  // namespace ckptfs::io
