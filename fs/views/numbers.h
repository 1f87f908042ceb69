// Inode numbers of views. A number alone tells which real directory or step it is about, and is the same after each
// mount: 2^62 + (node << 36) + real inode. Node 0 is the real directory itself, either one that leads to steps or the
// view of a step. The other nodes get their number from their path in the view (fs/views/view.h).
#pragma once

#include <cstdint>

#include "meta/types.h"

namespace ckptfs::fs::views {

using meta::InodeNumber;
using NodeNumber = uint32_t;

inline constexpr unsigned kRealBits = 36;
inline constexpr unsigned kNodeBits = 26;
inline constexpr InodeNumber kRoot = meta::kFirstVirtualInode + meta::kRootInode;

inline bool is_virtual(InodeNumber inode) { return inode >= meta::kFirstVirtualInode; }
// Can this real inode have a view? Not if its number is too high, after 68 billion files.
inline bool has_number(InodeNumber real) { return real >> kRealBits == 0; }
inline InodeNumber number_of(InodeNumber real, NodeNumber node) {
  return meta::kFirstVirtualInode + (InodeNumber{node} << kRealBits) + real;
}
inline InodeNumber real_of(InodeNumber number) { return number & ((InodeNumber{1} << kRealBits) - 1); }
inline NodeNumber node_of(InodeNumber number) {
  return static_cast<NodeNumber>((number - meta::kFirstVirtualInode) >> kRealBits);
}

}  // namespace ckptfs::fs::views
