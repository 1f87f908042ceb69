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

  RequestCounts& counts() override { return counts_; }
  const std::string& url() const override { return url_; }

 private:
  using Texts = std::map<std::string, std::string>;

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
  // `name`: of what is asked for, for errors.
  Result<HttpAnswer> ask(const std::string& method, const std::string& path, const Texts& query, Texts headers,
                         HttpRequest request, const std::string& name, const RequestLimits& limits);
  // What an answer that is no success comes to.
  Error error_of(const HttpAnswer& answer, const std::string& name);
  Result<size_t> check_range(const HttpAnswer& answer, uint64_t offset, size_t wanted, const std::string& name) const;

  const std::string url_;
  const std::string prefix_;  // with a '/' at its end
  const Place place_;
  HttpClient http_;
  S3CredentialSource credentials_;
  std::atomic<int64_t> clock_offset_{0};  // seconds that the server's clock is ahead of ours, once it has mattered
  RequestCounts counts_;
};

}  // namespace ckptfs::io
