// What has arrived of a push that has no part yet. There is one file for each tag, and a line is added to it when
// something has arrived, or is about to be sent. A crash leaves whole lines: open() cuts off what follows the last one.
//
// A push holds one content: what is sent under its name never changes, since a request that was on its way for long may
// arrive after a later one. If the step changes, a new push begins, and of the one before it is remembered which files
// it has: the store can copy them. If a crash or a full disk takes something from the journal, more is sent again, and
// nothing else happens.
//
//   {"journal":2,"remote":"<id>","push":"<tag>/<slot>.<id>","content":"<digest>"}
//   {"before":"<tag>/<slot>.<id>","file":"<path>","digest":"<digest>"}   a file of the push before it, that arrived
//   {"file":"<path>","digest":"<digest>"}                                a file that arrived
//   {"upload":"<path>","id":"<the store's own>","bytes":67108864}        an upload that was begun, in pieces of so much
//   {"upload":"<path>","piece":3,"tag":"<the store's own>"}              a piece of it that arrived
//
// Thread safety: all but open() and begin() from any thread. Lock: mutex (a leaf).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "io/digest.h"
#include "io/result.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {

struct JournalledUpload {
  std::string id;
  uint64_t piece_bytes = 0;
  std::map<uint32_t, std::string> pieces;  // what put_piece() has returned, by number
};

class PushJournal {
 public:
  // `file`: is made if it is not there. `remote`: RemoteFacts::id; what was journalled for another one is forgotten.
  static Result<PushJournal> open(const std::string& file, const std::string& remote);
  PushJournal(PushJournal&&) noexcept;
  ~PushJournal();

  // The push that is on its way; none: there is none.
  std::optional<PushName> push() const;
  io::Digest content() const;  // of its image
  // Begins another push. Durable on return.
  Result<> begin(const PushName& push, const io::Digest& content);
  // Forgets everything: the part was put, or the files may be gone.
  Result<> clear();

  // Durable on return. `digest`: of all of the file's chunks.
  Result<> add_file(const std::string& path, const io::Digest& digest);
  // Without an id: there is none any more.
  Result<> add_upload(const std::string& path, const std::string& id, uint64_t piece_bytes);
  Result<> add_piece(const std::string& path, uint32_t number, const std::string& tag);

  bool has_file(const std::string& path) const;
  JournalledUpload upload(const std::string& path) const;  // without an id: none was begun
  // An earlier push of which this file has arrived, with this digest.
  std::optional<PushName> file_before(const std::string& path, const io::Digest& digest) const;

 private:
  struct Internals;  // mutex is in it
  explicit PushJournal(std::unique_ptr<Internals> internals);
  std::unique_ptr<Internals> internals_;
};

}  // namespace ckptfs::meta::remote
