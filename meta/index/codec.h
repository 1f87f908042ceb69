// How keys and values lie in the index (docs/store-format.md). Keys are big-endian, so that order is meaning; values
// are little-endian behind one version byte. Pure functions; a value that cannot be decoded is EIO.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/result.h"
#include "meta/formats/tensor_map.h"
#include "meta/types.h"

namespace ckptfs::meta {

inline constexpr char kValueVersion = 1;

std::string number_key(uint64_t number);
// blob, then which of its groups of digests
std::string digests_key(BlobNumber blob, uint64_t group);
// parent or inode, then a name (entries, xattrs)
std::string name_key(uint64_t number, std::string_view name);
uint64_t key_number(std::string_view key);
std::string_view key_name(std::string_view key);

struct EntryRecord {
  InodeNumber inode = 0;
  uint32_t type = 0;  // S_IFMT bits
};

// A blob whose write-back failed (meta/blobs/write_back.h).
struct SuspectRecord {
  InodeNumber file = 0;  // that named it then
  int32_t errno_value = 0;
};

// The tensor map of a step, as its files were read when `version` told them apart (meta/steps/tensor_maps.h).
struct KeptMap {
  io::Digest version{};
  formats::TensorMap map;
};

std::string encode(const InodeRecord& record);
std::string encode(const BlobRecord& record);
std::string encode(const StepRecord& record);
std::string encode(const EntryRecord& record);
std::string encode(const SuspectRecord& record);
std::string encode(std::span<const io::Digest> digests);
std::string encode(const KeptMap& map);
std::string encode_number(uint64_t number);

Result<InodeRecord> decode_inode(std::string_view value);
Result<BlobRecord> decode_blob(std::string_view value);
Result<StepRecord> decode_step(std::string_view value);
Result<EntryRecord> decode_entry(std::string_view value);
Result<SuspectRecord> decode_suspect(std::string_view value);
Result<std::vector<io::Digest>> decode_digests(std::string_view value);
Result<KeptMap> decode_map(std::string_view value);
Result<uint64_t> decode_number(std::string_view value);

}  // namespace ckptfs::meta
