// odirect_any: random reads and writes with O_DIRECT from several threads, compared with a reference in memory.
//
//   odirect_any FILE SIZE OPERATIONS THREADS SEED ALIGNMENT [buffered]
//
// With ALIGNMENT 1, buffers, offsets and lengths are arbitrary; otherwise all three are multiples of it. `buffered`
// omits O_DIRECT. Half of the operations are pread and pwrite; the other half are libaio in batches of up to 8. First
// the file is made by appending pieces of odd length, with a stat of its size after each. Then each thread owns ranges
// of it whose borders are at any byte, so that ranges meet within sectors. A thread writes its own ranges, reads
// anywhere, and compares the part that it owns. At the end the whole file is compared, through an O_DIRECT and through
// a buffered descriptor. The first difference or error is printed, and ends the program with status 1.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kDepth = 8, kLongest = 1 << 20, kSlack = 8192, kRanges = 64, kTail = 4096 };

static const char* path;
static size_t size, alignment;
static int flags;
static char* reference;
static size_t borders[kRanges + 1];  // range i is [borders[i], borders[i + 1]); it belongs to thread i % threads
static int threads;

struct worker {
  pthread_t thread;
  int number;
  long operations;
  uint64_t random;
  int fd;
  aio_context_t context;
  char* memory[kDepth];
};

struct request {
  char* data;
  size_t offset, length;
  int writes;
};

static void fail(const char* what, size_t offset, size_t length, long long got) {
  printf("odirect_any: %s at offset %zu, length %zu: %lld\n", what, offset, length, got);
  fflush(stdout);
  _exit(1);
}

static uint64_t next(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static size_t below(uint64_t* state, size_t bound) { return bound == 0 ? 0 : (size_t)(next(state) % bound); }

static void fill(uint64_t* state, char* data, size_t length) {
  for (size_t i = 0; i < length; i += 8) {
    uint64_t word = next(state);
    memcpy(data + i, &word, length - i < 8 ? length - i : 8);
  }
}

static void* allocate(size_t length) {
  void* memory = NULL;
  if (posix_memalign(&memory, 4096, length) != 0) abort();
  return memory;
}

static size_t down(size_t value) { return value - value % alignment; }

// Returns a place in the buffer, as unaligned as ALIGNMENT allows.
static char* place(struct worker* self, int slot) {
  return self->memory[slot] + (alignment == 1 ? below(&self->random, 4096) : down(below(&self->random, 4096)));
}

// Returns a length: a few bytes, about a sector, some pages, or up to 1 MiB.
static size_t some_length(struct worker* self) {
  static const size_t tops[] = {16, 1200, 9000, 70000, kLongest};
  return 1 + below(&self->random, tops[below(&self->random, 5)] - 1);
}

// Makes a request within [from, to).
static struct request some_request(struct worker* self, int slot, size_t from, size_t to, int writes) {
  size_t length = some_length(self);
  if (length > to - from) length = to - from;
  size_t offset = from + below(&self->random, to - from - length + 1);
  if (alignment > 1) {
    offset = down(offset);
    length = down(length + alignment - 1);
    if (offset < from) offset = down(from + alignment - 1);
    if (offset + length > to) length = offset < to ? down(to - offset) : 0;
  }
  return (struct request){place(self, slot), offset, length, writes};
}

static int owned(const struct worker* self, int range) { return range % threads == self->number; }

// Compares the parts of the request that are in this thread's ranges.
static void compare(const struct worker* self, const struct request* request) {
  for (int i = 0; i < kRanges; i++) {
    if (!owned(self, i)) continue;
    size_t from = borders[i] > request->offset ? borders[i] : request->offset;
    size_t to = request->offset + request->length;
    if (borders[i + 1] < to) to = borders[i + 1];
    for (size_t at = from; at < to; at++) {
      if (request->data[at - request->offset] != reference[at]) {
        fail("read gave another byte than was written", at, request->length, request->data[at - request->offset]);
      }
    }
  }
}

static void prepare(struct worker* self, struct request* request) {
  if (!request->writes) return;
  fill(&self->random, request->data, request->length);
  memcpy(reference + request->offset, request->data, request->length);
}

static void finish(const struct worker* self, const struct request* request, long long done) {
  if (done != (long long)request->length)
    fail(request->writes ? "write" : "read", request->offset, request->length, done);
  if (!request->writes) compare(self, request);
}

static void one_call(struct worker* self) {
  int range = (int)below(&self->random, kRanges / (size_t)threads) * threads + self->number;
  int writes = below(&self->random, 2) == 0;
  struct request request =
      writes ? some_request(self, 0, borders[range], borders[range + 1], 1) : some_request(self, 0, 0, size, 0);
  if (request.length == 0) return;
  prepare(self, &request);
  long long done = writes ? pwrite(self->fd, request.data, request.length, (off_t)request.offset)
                          : pread(self->fd, request.data, request.length, (off_t)request.offset);
  finish(self, &request, done < 0 ? -errno : done);
}

// Runs up to kDepth requests at once, each in another range of this thread, because requests in flight have no order.
static void one_batch(struct worker* self) {
  struct request requests[kDepth];
  struct iocb blocks[kDepth], *list[kDepth];
  int count = 0, own = kRanges / threads, first = (int)below(&self->random, (size_t)own);
  for (int i = 0; i < kDepth && i < own; i++) {
    int range = (first + i) % own * threads + self->number;
    struct request request =
        some_request(self, count, borders[range], borders[range + 1], below(&self->random, 2) == 0);
    if (request.length == 0) continue;
    prepare(self, &request);
    requests[count] = request;
    memset(&blocks[count], 0, sizeof blocks[count]);
    blocks[count].aio_data = (uint64_t)count;
    blocks[count].aio_lio_opcode = request.writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
    blocks[count].aio_fildes = (uint32_t)self->fd;
    blocks[count].aio_buf = (uint64_t)(uintptr_t)request.data;
    blocks[count].aio_nbytes = request.length;
    blocks[count].aio_offset = (int64_t)request.offset;
    list[count] = &blocks[count];
    count++;
  }
  if (count == 0) return;
  long sent = syscall(SYS_io_submit, self->context, count, list);
  if (sent != count) fail("io_submit", 0, (size_t)count, sent < 0 ? -errno : sent);
  struct io_event events[kDepth];
  for (int seen = 0; seen < count;) {
    long got = syscall(SYS_io_getevents, self->context, 1, kDepth, events, NULL);
    for (long i = 0; i < got; i++) finish(self, &requests[events[i].data], (long long)events[i].res);
    seen += (int)got;
  }
}

static void* work(void* argument) {
  struct worker* self = argument;
  for (long i = 0; i < self->operations; i++) {
    if (below(&self->random, 2) == 0) {
      one_call(self);
    } else {
      one_batch(self);
      i += kDepth - 1;
    }
  }
  return NULL;
}

static void open_worker(struct worker* self, int number, long operations, uint64_t seed) {
  *self = (struct worker){
      .number = number, .operations = operations, .random = seed * 2654435761u + 77u * (uint64_t)number + 1};
  self->fd = open(path, O_RDWR | flags);
  if (self->fd < 0) fail("open", 0, 0, -errno);
  if (syscall(SYS_io_setup, kDepth, &self->context) != 0) fail("io_setup", 0, 0, -errno);
  for (int i = 0; i < kDepth; i++) self->memory[i] = allocate(kLongest + kSlack);
}

static void close_worker(struct worker* self) {
  syscall(SYS_io_destroy, self->context);
  for (int i = 0; i < kDepth; i++) free(self->memory[i]);
  if (close(self->fd) != 0) fail("close", 0, 0, -errno);
}

static void expect_size(size_t wanted) {
  struct stat now;
  if (stat(path, &now) != 0) fail("stat", 0, 0, -errno);
  if ((size_t)now.st_size != wanted) fail("stat right behind a write: size", wanted, 0, (long long)now.st_size);
}

// Makes the file by writes that each begin at its end. A read across the end must be short, and one beyond it empty.
static void grow(struct worker* self) {
  size_t end = 0;
  while (end < size) {
    struct request request = {place(self, 0), end, down(some_length(self) + alignment - 1), 1};
    if (request.length > size - end) request.length = size - end;
    prepare(self, &request);
    long long done = pwrite(self->fd, request.data, request.length, (off_t)end);
    finish(self, &request, done < 0 ? -errno : done);
    end += request.length;
    expect_size(end);
  }
  struct request tail = {place(self, 1), size - kTail, kTail, 0};
  long long done = pread(self->fd, tail.data, 2 * kTail, (off_t)tail.offset);
  finish(self, &tail, done < 0 ? -errno : done);
  done = pread(self->fd, tail.data, kTail, (off_t)(size + kTail));
  if (done != 0) fail("read beyond the end", size + kTail, kTail, done < 0 ? -errno : done);
}

static void compare_all(int with_flags) {
  int fd = open(path, O_RDONLY | with_flags);
  if (fd < 0) fail("open", 0, 0, -errno);
  char* memory = allocate(kLongest);
  for (size_t at = 0; at < size;) {
    ssize_t done = pread(fd, memory, kLongest, (off_t)at);
    if (done <= 0) fail("read of all", at, kLongest, done < 0 ? -errno : done);
    for (ssize_t i = 0; i < done; i++) {
      if (memory[i] != reference[at + (size_t)i])
        fail("at the end another byte than was written", at + (size_t)i, 0, memory[i]);
    }
    at += (size_t)done;
  }
  free(memory);
  close(fd);
}

int main(int argc, char** argv) {
  if (argc < 7) {
    fprintf(stderr, "odirect_any FILE SIZE OPERATIONS THREADS SEED ALIGNMENT [buffered]\n");
    return 2;
  }
  path = argv[1];
  size = strtoull(argv[2], NULL, 0);
  long operations = strtol(argv[3], NULL, 0);
  threads = atoi(argv[4]);
  uint64_t seed = strtoull(argv[5], NULL, 0);
  alignment = strtoull(argv[6], NULL, 0);
  flags = argc > 7 ? 0 : O_DIRECT;
  reference = allocate(size + kLongest);

  int made = open(path, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
  if (made < 0) fail("create", 0, 0, -errno);
  struct worker workers[kRanges];
  open_worker(&workers[0], 0, 0, seed);
  for (int i = 1; i < kRanges; i++) {
    size_t middle = size / kRanges * (size_t)i;
    borders[i] = alignment == 1 ? middle - 700 + below(&workers[0].random, 1400) : down(middle);
  }
  borders[kRanges] = size;
  grow(&workers[0]);
  close_worker(&workers[0]);
  close(made);

  for (int i = 0; i < threads; i++) {
    open_worker(&workers[i], i, operations / threads, seed + 1);
    if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) abort();
  }
  for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
  for (int i = 0; i < threads; i++) close_worker(&workers[i]);
  compare_all(flags);
  compare_all(0);
  expect_size(size);
  printf("ok: %ld operations, %d threads, seed %llu, alignment %zu\n", operations, threads, (unsigned long long)seed,
         alignment);
  return 0;
}
