// Objects in an S3-compatible store. Facts about servers: AWS, Ceph's radosgw and SeaweedFS refuse to overwrite when
// they are asked with If-None-Match; some others overwrite all the same, so whoever begins to use a store tries it.
//
// SeaweedFS lists folder by folder, so "a/1" comes before "a-b": nothing here relies on an order.
//
// Thread-safe. One try a call: see retrying_store.h.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "io/objects/http_client.h"
#include "io/objects/object_store.h"
#include "io/objects/s3_credentials.h"
#include "io/objects/s3_settings.h"
#include "io/objects/s3_signature.h"
#include "io/objects/s3_xml.h"

namespace ckptfs::io {

class S3Store : public ObjectStore {
 public:
  // `bucket` and `prefix` are not empty; keys lie below the prefix. EINVAL, in words, if the endpoint is no address.
  static Result<std::unique_ptr<ObjectStore>> open(const std::string& bucket, std::string prefix,
                                                   const S3Settings& settings);

  Result<> put(const std::string& key, const ObjectContent& content, PutMode mode,
               const RequestLimits& limits) override;
  Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                     const RequestLimits& limits) override;
  Result<ObjectPage> list(const std::string& prefix, const std::string& token, const RequestLimits& limits) override;
  Result<> remove(const std::string& key, const RequestLimits& limits) override;
  Result<> copy(const std::string& from, const std::string& to, uint64_t size, const RequestLimits& limits) override;
  Result<Upload> begin_upload(const std::string& key, const RequestLimits& limits) override;
  Result<std::string> put_piece(const Upload& upload, uint32_t number, uint64_t offset, const ObjectContent& content,
                                const RequestLimits& limits) override;
  Result<> complete_upload(const Upload& upload, uint64_t size, const std::vector<std::string>& pieces,
                           const RequestLimits& limits) override;
  Result<uint64_t> end_uploads(std::chrono::seconds older_than, const RequestLimits& limits) override;

  Result<> find_check(const std::string& key, const RequestLimits& limits) override;
  Result<> check_fits(const std::string& key) const override;
  RequestCounts& counts() override { return counts_; }
  const std::string& url() const override { return url_; }

 private:
  using Texts = std::map<std::string, std::string>;
  using SystemTime = std::chrono::system_clock::time_point;

  // Where the bucket is: "https://host:port" + path + key.
  struct Place {
    std::string origin;  // "https://host:port"
    std::string host;    // "host:port"
    std::string path;    // "/bucket/" or "/", encoded
    std::string region;
  };

  S3Store(const std::string& bucket, std::string prefix, Place place, const S3Settings& settings);
  static Result<Place> place_of(const std::string& bucket, const S3Settings& settings);

  std::string path_of(const std::string& key) const { return place_.path + percent_encoded(prefix_ + key, true); }
  // "/bucket/prefix/key", encoded.
  std::string path_in_bucket(const std::string& key) const {
    return "/" + percent_encoded(bucket_, false) + "/" + percent_encoded(prefix_ + key, true);
  }
  // `name`: of what is asked for, for errors.
  Result<HttpAnswer> ask(const std::string& method, const std::string& path, const Texts& query, Texts headers,
                         HttpRequest request, const std::string& name, const RequestLimits& limits);
  // How we know that what was put has arrived as it was sent. Most servers give it its MD5 as its ETag: then that is
  // computed while it is sent, and compared. Those that encrypt by KMS do not. They, a server that was not asked
  // yet, and one that has just differed get the MD5 beforehand, for which the content is read twice.
  enum class Check { beforehand, afterwards };

  // A PUT of an object, or of a piece of one. Returns its ETag. `sum`: if it is not null, that of the content is put
  // into it; else it is checked.
  Result<std::string> send(const std::string& key, const Texts& query, Texts headers, const ObjectContent& content,
                           const RequestLimits& limits, std::string* sum = nullptr);
  // A POST, or a PUT without content, that is answered by XML.
  Result<HttpAnswer> post(const std::string& method, const std::string& key, const Texts& query, Texts headers,
                          const std::string& text, const RequestLimits& limits);
  Result<> copy_in_pieces(const std::string& from, const std::string& to, uint64_t size, const RequestLimits& limits);
  Result<bool> end_if_idle(const S3Upload& upload, SystemTime before, const RequestLimits& limits);
  // What an answer that is no success comes to.
  Error error_of(const HttpAnswer& answer, const std::string& name);
  Result<size_t> check_range(const HttpAnswer& answer, uint64_t offset, size_t wanted, const std::string& name) const;

  const std::string url_;
  const std::string bucket_;
  const std::string prefix_;  // with a '/' at its end
  const Place place_;
  const uint64_t most_at_once_;
  HttpClient http_;
  S3CredentialSource credentials_;
  std::atomic<int64_t> clock_offset_{0};  // seconds that the server's clock is ahead of ours, once it has mattered
  std::atomic<Check> check_{Check::beforehand};
  RequestCounts counts_;
};

}  // namespace ckptfs::io
