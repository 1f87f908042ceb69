// Objects by key, in an S3-compatible store or in a folder on a shared file system. A key is a path of names with '/'
// between them: "step_7/rank0/a.bin". It has no empty name, no "." and no ".."; the first name does not begin with a
// dot, unless it is ".ckptfs": what else does so in a folder is the file system's, or on its way.
//
// Two kinds of classes implement this: a store that tries each request once (S3Store, FolderStore), and around it one
// that tries again (retrying_store.h). Users have the latter (open_object_store.h).
//
// Errors name the object, and what answered. can_pass() tells whether the same request may succeed later.
//   ENOENT      there is no such object. Right after a server's restart that is no proof, so it can pass
//   EEXIST      put() was to make the object, and it is there. It is left as it is
//   EACCES      the credentials are refused, or there is no such bucket. Final, until a request has succeeded
//   EPROTO      the other side is no object store, or not one that serves here. Never passes
//   ECANCELED   limits.stop was set
//   EAGAIN, ETIMEDOUT, ECONNRESET, EHOSTUNREACH, ...: it is busy, or out of reach
//
// Thread-safe, unless said otherwise. Every call blocks until it is done, or its limits say so; but a folder on a file
// system that hangs blocks as long as that does.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/mutex.h"
#include "io/result.h"

namespace ckptfs::io {

struct ObjectInfo {
  std::string key;
  uint64_t size = 0;
  std::chrono::system_clock::time_point changed;  // by the server's clock
};

// Some objects of a list, in an order of the server's own.
struct ObjectPage {
  std::vector<ObjectInfo> objects;
  std::string next;  // the token of the next page; empty: this is the last one
};

// What is put: it is read from its begin again when a try failed.
struct ObjectContent {
  uint64_t size = 0;
  // Fills the buffer with the bytes from `offset` on. The call of one thread at a time.
  std::function<Result<>(uint64_t offset, std::span<std::byte> buffer)> read;
};
ObjectContent content_of(std::span<const std::byte> bytes);  // `bytes` must outlive it
ObjectContent content_of(std::string_view text);

enum class PutMode {
  make,     // EEXIST if there is an object of this key, whoever else makes one at that moment
  replace,  // the object is replaced as a whole
};

// An object that is put in pieces: in any order, from several threads, and over several lives of a process.
struct Upload {
  std::string key;
  std::string id;         // how the store calls it
  bool is_known = false;  // from a life before: the store may have been restored from a copy since
};
inline constexpr uint32_t kMostPieces = 10'000;  // of S3; and each but the last one has 5 MiB at least

struct RequestLimits {
  static constexpr std::chrono::seconds kStall{45};  // so that what hangs is known within a minute

  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  std::chrono::milliseconds stall = kStall;  // a try ends when not a byte has moved for so long
  const std::atomic<bool>* stop = nullptr;   // it ends within a second after this is set
  bool in_all = false;                       // the deadline is that of all requests of the work: somebody waits for it

  static RequestLimits within(std::chrono::milliseconds time, const std::atomic<bool>* stop = nullptr) {
    return {std::chrono::steady_clock::now() + time, kStall, stop, false};
  }
  // For a further request of the same work: it has as much time as the first one had, which began at `first`, unless
  // the deadline is that of all.
  RequestLimits renewed(std::chrono::steady_clock::time_point first) const {
    RequestLimits next = *this;
    if (!in_all && deadline != std::chrono::steady_clock::time_point::max()) {
      next.deadline = std::chrono::steady_clock::now() + (deadline - first);
    }
    return next;
  }
  bool is_stopped() const { return stop != nullptr && stop->load(std::memory_order_relaxed); }
};

// What has been asked since the store was opened. Tries count, also those that failed.
struct RequestCounts {
  std::atomic<uint64_t> puts{0}, gets{0}, lists{0}, removes{0};
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};  // of objects
  std::atomic<uint64_t> retries{0};

  // What stands in the way: the last try that failed, if none has succeeded since.
  struct Trouble {
    std::string text;
    std::chrono::steady_clock::time_point since;  // when the first one that failed began
  };
  // `begun`: when the try began.
  void note_failure(const Error& error, std::chrono::steady_clock::time_point begun);
  void note_success();
  // Calls tell() once for each trouble that lasts, from the thread whose try failed. Before the first request.
  void tell_trouble(std::function<void(const std::string& text)> tell) { tell_ = std::move(tell); }
  std::optional<Trouble> trouble() const;

 private:
  std::function<void(const std::string&)> tell_;
  mutable Mutex mutex_;
  std::optional<Trouble> trouble_ GUARDED_BY(mutex_);
  bool told_ GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point succeeded_ GUARDED_BY(mutex_);
};

class ObjectStore {
 public:
  ObjectStore() = default;
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;
  virtual ~ObjectStore() = default;

  // The object is durable when it returns, and has arrived as it was read. EAGAIN: it was damaged on the way.
  virtual Result<> put(const std::string& key, const ObjectContent& content, PutMode mode,
                       const RequestLimits& limits) = 0;
  // Returns how many bytes there are from `offset` on, up to the buffer's size: fewer than that at the object's end.
  virtual Result<size_t> get(const std::string& key, uint64_t offset, std::span<std::byte> buffer,
                             const RequestLimits& limits) = 0;
  // A page of the objects whose key begins with `prefix`. `token`: empty for the first page, else `next` of the one
  // before. Names that are no keys are left out. for_each_object() asks for all pages.
  virtual Result<ObjectPage> list(const std::string& prefix, const std::string& token, const RequestLimits& limits) = 0;
  // It is no error if there is no such object.
  virtual Result<> remove(const std::string& key, const RequestLimits& limits) = 0;

  // The store itself makes an object of what another one of `size` bytes holds; if there is one already, it is
  // replaced. ENOENT, finally: there is no such object. ENOTSUP, or EPROTO: the store cannot do that.
  virtual Result<> copy(const std::string& from, const std::string& to, uint64_t size, const RequestLimits& limits) = 0;

  // Nothing of the object is seen before complete_upload(), which replaces one that is there.
  virtual Result<Upload> begin_upload(const std::string& key, const RequestLimits& limits) = 0;
  // `number`: from 1 on; `offset`: in the object. All pieces but the last one have one size. Durable, and may be done
  // again. Returns what complete_upload() needs of it. ENOENT, finally: there is no such upload any more.
  virtual Result<std::string> put_piece(const Upload& upload, uint32_t number, uint64_t offset,
                                        const ObjectContent& content, const RequestLimits& limits) = 0;
  // `size`: of the object. `pieces`: what put_piece() has returned, in the order of their numbers. It is no error if it
  // was completed before. ENOENT, finally: there is no such upload any more, or it lacks what was put, and there is no
  // object of that key and size.
  virtual Result<> complete_upload(const Upload& upload, uint64_t size, const std::vector<std::string>& pieces,
                                   const RequestLimits& limits) = 0;
  // Ends uploads, and removes what writers that were killed have left, to which nothing has come for so long by the
  // server's clock. Returns how many that were.
  virtual Result<uint64_t> end_uploads(std::chrono::seconds older_than, const RequestLimits& limits) = 0;
  // Removes the folders below this prefix in which no object is, and the prefix's own, if nothing has changed in them
  // for so long by the server's clock. Returns how many that were. S3 has no folders.
  virtual Result<uint64_t> remove_empty_folders(const std::string& /*prefix*/, std::chrono::seconds /*older_than*/,
                                                const RequestLimits& /*limits*/) {
    return uint64_t{0};
  }

  // Finds out how the store can be made to tell that what is put has arrived as it was sent, by a few requests for this
  // key, which is removed again. Until it was called, put() may read its content twice. EPROTO, in words: it cannot.
  virtual Result<> find_check(const std::string& /*key*/, const RequestLimits& /*limits*/) { return success(); }

  // EINVAL, in words: no object of this store can have this key, since it is too long.
  virtual Result<> check_fits(const std::string& key) const = 0;
  virtual RequestCounts& counts() = 0;
  // "s3://bucket/run7" or "file:///mnt/run7": for messages.
  virtual const std::string& url() const = 0;
};

// Can the same request succeed later, with nothing changed here?
bool can_pass(const Error& error);

// Calls visit() for each object of the prefix, once. An error that it returns ends the list, and is returned. A list
// that breaks off is an error. `limits`: each page has as much time as the first one.
using ObjectVisitor = std::function<Result<>(const ObjectInfo&)>;
Result<> for_each_object(ObjectStore& store, const std::string& prefix, const ObjectVisitor& visit,
                         const RequestLimits& limits);

// Reads a whole object of at most `most` bytes. EFBIG if it is larger.
Result<std::string> get_text(ObjectStore& store, const std::string& key, size_t most, const RequestLimits& limits);

// Makes an object unless it is there. Returns whether it was made now. False: it was there, by a lost reply of ours or
// from somebody else.
Result<bool> make_object(ObjectStore& store, const std::string& key, std::string_view text, const RequestLimits& limits,
                         PutMode mode = PutMode::make);

// Has the store an object of this key and size?
Result<bool> has_size(ObjectStore& store, const std::string& key, uint64_t size, const RequestLimits& limits);
// Likewise, by a list, which tells it for certain: a get of what is not there is tried until the deadline.
Result<bool> is_listed(ObjectStore& store, const std::string& key, const RequestLimits& limits);
// Does the store hold exactly this content?
Result<bool> holds(ObjectStore& store, const std::string& key, const ObjectContent& content,
                   const RequestLimits& limits);

// EINVAL, in words, unless it is a key as above.
Result<> check_key(std::string_view key);
// EINVAL, in words, unless it is empty, or a key with a '/' at its end.
Result<> check_prefix(std::string_view prefix);
// Likewise, or the beginning of a key.
Result<> check_beginning(std::string_view prefix);

}  // namespace ckptfs::io
