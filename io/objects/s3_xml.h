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

// The text of the first element of this path, as "/CopyObjectResult/ETag"; empty: there is none.
std::string read_s3_text(std::string_view xml, std::string_view path);

struct S3Upload {
  std::string key;  // whole, with the store's prefix
  std::string id;
  std::chrono::system_clock::time_point begun;
};
// A page of the answer to ListMultipartUploads.
struct S3Uploads {
  std::vector<S3Upload> uploads;
  std::string next_key, next_id;  // markers; empty: this is the last page
};
Result<S3Uploads> read_s3_uploads(std::string_view xml);

// A page of the answer to ListParts.
struct S3Pieces {
  std::chrono::system_clock::time_point newest;
  std::string next;  // marker; empty: this is the last page
};
Result<S3Pieces> read_s3_pieces(std::string_view xml);

struct S3Failure {
  std::string code, message, region;  // empty where it does not say
};

// Of whatever a server sends with an error.
S3Failure read_s3_failure(std::string_view xml);

}  // namespace ckptfs::io
