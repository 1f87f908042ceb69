// Compares what a read has brought with the file's digests. Only chunks that are whole in it can be compared.
// Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "gpu/read_plan.h"
#include "gpu/source_file.h"

namespace ckptfs::gpu {

// `bytes` are those of the file from the read's beginning on. Returns how many of them were compared. Fails with EIO
// if a chunk differs, and names the file, the chunk, and the tensors that have a part in it.
Result<uint64_t> check_read(const SourceFile& file, const ReadPlan& plan, const PlannedRead& read,
                            std::span<const std::byte> bytes);

// Names the tensors that want something of the bytes [begin, end) of the read's file: a few, and how many more.
std::string tensors_in(const ReadPlan& plan, const PlannedRead& read, uint64_t begin, uint64_t end);

}  // namespace ckptfs::gpu
