// A fuzzer's input as a file, because the readers read from descriptors.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/fd.h"

namespace ckptfs {

inline io::Fd input_file(const uint8_t* data, size_t size) {
  io::Fd file(::memfd_create("input", MFD_CLOEXEC));
  if (!file || !io::write_full(file.get(), std::as_bytes(std::span(data, size)), 0)) std::abort();
  return file;
}

}  // namespace ckptfs
