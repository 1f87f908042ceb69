// Objects as files below a folder of a shared file system (NFS, Lustre, GPFS, CephFS).
//
// put() writes a file of a temporary name in ".ckptfs-uploads", syncs it, gives it the object's name by link(2), which
// replaces nothing on any of these, and syncs the folder. So an object is there as a whole or not at all. Where a file
// system has no hard links, renameat2(RENAME_NOREPLACE) takes link's place. An upload is such a file, too. A writer
// that dies leaves its file there, until end_uploads() removes it. A put() whose folder vanishes fails, and can pass.
//
// The folder itself is never made: if it is not there, its file system is not mounted (ESTALE, which can pass).
//
// Thread-safe. One try a call: see retrying_store.h.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "io/fd.h"
#include "io/mutex.h"
#include "io/objects/object_store.h"

namespace ckptfs::io {

class FolderStore : public ObjectStore {
 public:
  // `folder` is an absolute path.
  static Result<std::unique_ptr<ObjectStore>> open(const std::string& folder);

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
  Result<uint64_t> remove_empty_folders(const std::string& prefix, std::chrono::seconds older_than,
                                        const RequestLimits& limits) override;

  Result<> check_fits(const std::string& key) const override;
  RequestCounts& counts() override { return counts_; }
  const std::string& url() const override { return url_; }

 private:
  using Time = std::chrono::system_clock::time_point;
  explicit FolderStore(std::string folder) : folder_(std::move(folder)), url_("file://" + folder_) {}

  std::string path_of(const std::string& key) const { return folder_ + "/" + key; }
  Error failed(const std::string& key, const char* what, const Error& why) const;
  Result<> check_limits(const std::string& key, const RequestLimits& limits) const;
  Result<> check_folder() const;
  Result<> refuse_links(const std::string& prefix) const;
  // Makes the folders on the way to the object. Syncs above each that this process has not synced before: whoever has
  // made it may not have come to that.
  Result<> make_folders(const std::string& key);
  void forget_folders();
  class Temporary;
  // With a new file in it, which is open for writing.
  Result<std::unique_ptr<Temporary>> make_temporary(const std::string& key) const;
  Result<> write(int file, uint64_t at, const std::string& key, const ObjectContent& content,
                 const RequestLimits& limits);
  // Syncs the file, and gives it the name of the object.
  Result<> publish(Temporary& temporary, const std::string& key, PutMode mode);
  struct Below {
    std::string folder;  // "" or with '/' at its end
    std::string prefix;  // of all that is listed
  };
  // Adds what comes after `token`, as bytes. Returns whether there is room for more.
  Result<bool> list_folder(const Below& below, const std::string& token, ObjectPage& page, const RequestLimits& limits);
  Result<Fd> open_upload(const Upload& upload) const;
  Result<bool> holds_pieces(int file, const std::vector<std::string>& pieces, const RequestLimits& limits) const;
  Result<Time> time_there() const;
  Result<uint64_t> remove_if_empty(const std::string& key, Time before, const RequestLimits& limits);

  const std::string folder_, url_;
  RequestCounts counts_;
  Mutex mutex_;
  std::set<std::string> synced_ GUARDED_BY(mutex_);                        // folders, by key
  std::chrono::steady_clock::time_point synced_since_ GUARDED_BY(mutex_);  // the first of them
};

}  // namespace ckptfs::io
