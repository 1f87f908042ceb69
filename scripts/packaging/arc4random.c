/* arc4random of glibc 2.36, for static libraries that were built with it (libexpat, libstdc++) and have to run with
   glibc 2.34. Fails never: getrandom waits until the kernel has random bytes. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

__attribute__((visibility("hidden"))) void arc4random_buf(void* to, size_t bytes) {
  for (char* at = to; bytes != 0;) {
    const ssize_t got = getrandom(at, bytes, 0);
    if (got < 0 && errno != EINTR) abort();
    if (got > 0) {
      at += got;
      bytes -= (size_t)got;
    }
  }
}

__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
  uint32_t number;
  arc4random_buf(&number, sizeof number);
  return number;
}
