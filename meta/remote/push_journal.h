// What has arrived of a push that has no part yet: where each of its chunks lies. There is one file for each tag, and a
// pack is added to it after it has arrived. A crash leaves whole packs: open() cuts off what follows the last whole
// record.
//
// A chunk is found by its digest alone, so it does not matter what the step held when the chunk was sent. If a crash or
// a full disk takes something from the journal, more is sent again, and nothing else happens. 16 bytes of memory for
// each chunk.
//
//   "ckptfs push journal 1 <remote>\n"
//   records: length (4 bytes), the first 16 bytes of the BLAKE3 of what follows,
//            length of the push's name (4), number of the pack (4), the push's name,
//            the pack's chunks: digest (32), offset in the pack (4), length (4)
//
// Thread safety: add() and find() from any thread. Lock: mutex (a leaf).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/digest.h"
#include "io/result.h"
#include "meta/remote/layout.h"

namespace ckptfs::meta::remote {

struct JournalledChunk {
  io::Digest digest{};
  uint32_t offset = 0;  // in the pack
  uint32_t length = 0;
};

struct ChunkPlace {
  PushName push;
  uint32_t pack = 0;
  uint32_t offset = 0;
  uint32_t length = 0;
};

class PushJournal {
 public:
  // `file`: is made if it is not there. `remote`: RemoteFacts::id; what was journalled for another one is forgotten.
  static Result<PushJournal> open(const std::string& file, const std::string& remote);
  PushJournal(PushJournal&&) noexcept;
  ~PushJournal();

  // Durable on return.
  Result<> add(const PushName& push, uint32_t pack, std::span<const JournalledChunk> chunks);
  Result<std::optional<ChunkPlace>> find(const io::Digest& digest) const;
  // Whose packs are in it.
  std::vector<PushName> pushes() const;
  // Forgets everything: the part was put, or the packs may be gone.
  Result<> clear();

 private:
  struct Internals;  // mutex is in it
  explicit PushJournal(std::unique_ptr<Internals> internals);
  std::unique_ptr<Internals> internals_;
};

}  // namespace ckptfs::meta::remote
