#include "io/objects/open_object_store.h"

#include <string_view>

#include "io/objects/folder_store.h"
#include "io/objects/retrying_store.h"
#include "io/objects/s3_store.h"
#include "io/printable.h"

namespace ckptfs::io {
namespace {

constexpr std::string_view kS3 = "s3://", kFile = "file://";

Error bad_url(const std::string& url, const char* why) {
  return Error(EINVAL, printable(url) + ": " + why + ". A remote is s3://BUCKET/PREFIX or file:///FOLDER");
}

Result<std::unique_ptr<ObjectStore>> open_s3(const std::string& url, const S3Settings& settings) {
  const std::string_view rest = std::string_view(url).substr(kS3.size());
  const size_t slash = rest.find('/');
  const std::string_view bucket = rest.substr(0, slash);
  std::string_view prefix = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  if (bucket.empty()) return bad_url(url, "it names no bucket");
  if (prefix.empty()) return bad_url(url, "it names no prefix: one series lies below one prefix");
  if (!check_key(prefix)) return bad_url(url, "the prefix has an empty name, or one that begins with a dot");
  return S3Store::open(std::string(bucket), std::string(prefix), settings);
}

Result<std::unique_ptr<ObjectStore>> open_folder(const std::string& url) {
  std::string folder = url.substr(kFile.size());
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  if (!folder.starts_with('/')) return bad_url(url, "the folder has no absolute path");
  return FolderStore::open(folder);
}

}  // namespace

Result<std::unique_ptr<ObjectStore>> open_object_store(const std::string& url, const S3Settings& settings) {
  const bool s3 = url.starts_with(kS3);
  if (!s3 && !url.starts_with(kFile)) return bad_url(url, "no address of a remote");
  TRY_ASSIGN(std::unique_ptr<ObjectStore> store, s3 ? open_s3(url, settings) : open_folder(url));
  return std::unique_ptr<ObjectStore>(std::make_unique<RetryingStore>(std::move(store)));
}

}  // namespace ckptfs::io
