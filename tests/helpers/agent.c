// agent: executes commands that Python cannot: libaio with O_DIRECT as DeepSpeed uses it, and shared mappings whose
// descriptor is closed (Python's mmap keeps one). A command is a line on stdin, followed by its data if it has any. An
// answer is a line on stdout: "ok ...", or "err ERRNO".
//
//   aio OFFSET LENGTH PATH   + LENGTH bytes   write by libaio, O_DIRECT, 1 MiB blocks, depth 8; answers "ok SIZE", the
//                                             size that stat reports by path right after the write
//   aioread OFFSET LENGTH PATH                read the same way; "ok LENGTH", then the bytes
//   map LENGTH PATH                           map shared for reading and writing, close the descriptor; "ok ID"
//   store ID OFFSET LENGTH   + LENGTH bytes   store through a mapping
//   load ID OFFSET LENGTH                     "ok LENGTH", then the bytes in the mapping
//   msync ID | unmap ID
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kBlock = 1 << 20, kDepth = 8, kMappings = 4096, kAlignment = 4096 };

struct mapping {
  char* address;
  size_t length;
};
static struct mapping mappings[kMappings];
static sigjmp_buf bus_error;

static void on_bus_error(int number) {
  (void)number;
  siglongjmp(bus_error, 1);
}

static void answer(int error) {
  if (error != 0) {
    printf("err %d\n", error);
  } else {
    printf("ok\n");
  }
}

static void* buffer_of(size_t length) {
  void* memory = NULL;
  if (posix_memalign(&memory, kAlignment, length + kAlignment) != 0) abort();
  return memory;
}

// Transfers all bytes. Returns 0 or an errno; a short transfer is EIO.
static int transfer(int fd, char* data, size_t length, off_t offset, int opcode) {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, kDepth, &context) != 0) return errno;
  struct iocb blocks[kDepth];
  size_t submitted = 0, finished = 0;
  int free_slots[kDepth], free_count = kDepth, error = 0;
  for (int i = 0; i < kDepth; i++) free_slots[i] = i;
  while (finished < length && error == 0) {
    while (submitted < length && free_count > 0) {
      int slot = free_slots[--free_count];
      struct iocb* block = &blocks[slot];
      memset(block, 0, sizeof *block);
      block->aio_data = (uint64_t)slot;
      block->aio_lio_opcode = (uint16_t)opcode;
      block->aio_fildes = (uint32_t)fd;
      block->aio_buf = (uint64_t)(uintptr_t)(data + submitted);
      block->aio_nbytes = length - submitted < kBlock ? length - submitted : kBlock;
      block->aio_offset = offset + (off_t)submitted;
      struct iocb* list[1] = {block};
      if (syscall(SYS_io_submit, context, 1, list) != 1) {
        error = errno;
        break;
      }
      submitted += block->aio_nbytes;
    }
    struct io_event events[kDepth];
    if (kDepth - free_count == 0) break;
    long count = syscall(SYS_io_getevents, context, 1, kDepth, events, NULL);
    for (long i = 0; i < count; i++) {
      struct iocb* block = &blocks[events[i].data];
      if (events[i].res < 0) {
        error = (int)-events[i].res;
      } else if ((uint64_t)events[i].res != block->aio_nbytes) {
        error = EIO;
      }
      finished += block->aio_nbytes;
      free_slots[free_count++] = (int)events[i].data;
    }
  }
  syscall(SYS_io_destroy, context);
  return error;
}

static void do_aio(size_t length, off_t offset, const char* path) {
  char* data = buffer_of(length);
  if (fread(data, 1, length, stdin) != length) exit(1);
  int fd = open(path, O_WRONLY | O_CREAT | O_DIRECT, 0600);
  int error = fd < 0 ? errno : transfer(fd, data, length, offset, IOCB_CMD_PWRITE);
  struct stat now;
  if (error == 0 && stat(path, &now) != 0) error = errno;
  if (fd >= 0 && close(fd) != 0 && error == 0) error = errno;
  free(data);
  if (error != 0) {
    answer(error);
  } else {
    printf("ok %lld\n", (long long)now.st_size);
  }
}

static void do_aioread(size_t length, off_t offset, const char* path) {
  char* data = buffer_of(length);
  int fd = open(path, O_RDONLY | O_DIRECT);
  int error = fd < 0 ? errno : transfer(fd, data, length, offset, IOCB_CMD_PREAD);
  if (fd >= 0) close(fd);
  if (error != 0) {
    answer(error);
  } else {
    printf("ok %zu\n", length);
    fwrite(data, 1, length, stdout);
  }
  free(data);
}

static void do_map(size_t length, const char* path) {
  int id = 0;
  while (id < kMappings && mappings[id].address != NULL) id++;
  int fd = id < kMappings ? open(path, O_RDWR) : -1;
  if (fd < 0) {
    answer(id < kMappings ? errno : EMFILE);
    return;
  }
  char* address = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int error = errno;
  close(fd);
  if (address == MAP_FAILED) {
    answer(error);
    return;
  }
  mappings[id] = (struct mapping){address, length};
  printf("ok %d\n", id);
}

static void do_store(int id, off_t offset, size_t length) {
  char* data = buffer_of(length);
  if (fread(data, 1, length, stdin) != length) exit(1);
  if (sigsetjmp(bus_error, 1) != 0) {
    answer(EFAULT);
  } else {
    memcpy(mappings[id].address + offset, data, length);
    answer(0);
  }
  free(data);
}

static void do_load(int id, off_t offset, size_t length) {
  char* data = buffer_of(length);
  if (sigsetjmp(bus_error, 1) != 0) {
    answer(EFAULT);
  } else {
    memcpy(data, mappings[id].address + offset, length);
    printf("ok %zu\n", length);
    fwrite(data, 1, length, stdout);
  }
  free(data);
}

static void do_unmap(int id) {
  int failed = munmap(mappings[id].address, mappings[id].length);
  mappings[id].address = NULL;
  answer(failed != 0 ? errno : 0);
}

static int obey(char* line) {
  line[strcspn(line, "\n")] = '\0';
  long long offset = 0, length = 0;
  int id = 0, at = 0;
  if (sscanf(line, "aio %lld %lld %n", &offset, &length, &at) == 2 && at > 0) {
    do_aio((size_t)length, offset, line + at);
  } else if (sscanf(line, "aioread %lld %lld %n", &offset, &length, &at) == 2 && at > 0) {
    do_aioread((size_t)length, offset, line + at);
  } else if (sscanf(line, "map %lld %n", &length, &at) == 1 && at > 0) {
    do_map((size_t)length, line + at);
  } else if (sscanf(line, "store %d %lld %lld", &id, &offset, &length) == 3) {
    do_store(id, offset, (size_t)length);
  } else if (sscanf(line, "load %d %lld %lld", &id, &offset, &length) == 3) {
    do_load(id, offset, (size_t)length);
  } else if (sscanf(line, "msync %d", &id) == 1) {
    answer(msync(mappings[id].address, mappings[id].length, MS_SYNC) != 0 ? errno : 0);
  } else if (sscanf(line, "unmap %d", &id) == 1) {
    do_unmap(id);
  } else {
    fprintf(stderr, "agent: not a command: %s\n", line);
    return 0;
  }
  fflush(stdout);
  return 1;
}

int main(void) {
  signal(SIGBUS, on_bus_error);
  char line[8192];
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (!obey(line)) return 1;
  }
  return 0;
}
