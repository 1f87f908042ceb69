// unaligned_writer: overwrites files directly, without ckptfs, at an offset that O_DIRECT does not accept, as well as a
// program can. It writes the whole pages of each request by O_DIRECT, and its head and tail through the page cache. The
// tail is written while the body is in flight, and the pages of the next heads and tails are read ahead.
//
//   unaligned_writer OFFSET LENGTH FILE...
//
// Each file is written from OFFSET on for LENGTH bytes (whole MiB), in requests of 1 MiB, kDepth of them at a time, and
// then synced. Prints the bytes per second. tests/bench uses it as the yardstick for ckptfs, which does the same behind
// FUSE.
#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kPage = 4096, kRequest = 1 << 20, kDepth = 8, kAhead = 16 * kRequest, kMostFiles = 16 };

struct file {
  int direct, buffered;
  atomic_long next;  // the first byte that no thread has taken yet
  pthread_t threads[kDepth];
};

static struct file files[kMostFiles];
static long offset, length;

static void check(int right, const char* what) {
  if (right) return;
  perror(what);
  exit(1);
}

static void write_body_and_tail(struct io_uring* ring, struct file* file, const char* data, long body, long tail,
                                off_t at) {
  io_uring_prep_write(io_uring_get_sqe(ring), file->direct, data, body, at);
  check(io_uring_submit(ring) == 1, "io_uring_submit");
  check(pwrite(file->buffered, data + body, tail, at + body) == tail, "tail");
  struct io_uring_cqe* done;
  check(io_uring_wait_cqe(ring, &done) == 0 && done->res == body, "body");
  io_uring_cqe_seen(ring, done);
}

static void* write_requests(void* argument) {
  struct file* file = argument;
  struct io_uring ring;
  check(io_uring_queue_init(1, &ring, 0) == 0, "io_uring");
  char* page = aligned_alloc(kPage, kPage + kRequest);  // a head is at the end of the first page
  check(page != NULL, "memory");
  memset(page, 1, kPage + kRequest);
  for (;;) {
    const off_t begin = atomic_fetch_add(&file->next, kRequest), end = begin + kRequest;
    if (end > offset + length) break;
    const long tail = end % kPage, head = (kPage - begin % kPage) % kPage, body = kRequest - head - tail;
    posix_fadvise(file->buffered, end - tail + kAhead, kPage, POSIX_FADV_WILLNEED);
    check(pwrite(file->buffered, page + kPage - head, head, begin) == head, "head");
    write_body_and_tail(&ring, file, page + kPage, body, tail, begin + head);
  }
  free(page);
  io_uring_queue_exit(&ring);
  return NULL;
}

int main(int count, char** words) {
  if (count >= 4) offset = atol(words[1]), length = atol(words[2]);
  if (length <= 0 || length % kRequest != 0 || count - 3 > kMostFiles) {
    fprintf(stderr, "usage: unaligned_writer OFFSET LENGTH FILE...: whole MiB, at most %d files\n", kMostFiles);
    return 2;
  }
  struct timespec began, ended;
  clock_gettime(CLOCK_MONOTONIC, &began);
  for (int i = 0; i < count - 3; i++) {
    files[i].direct = open(words[3 + i], O_WRONLY | O_DIRECT);
    files[i].buffered = open(words[3 + i], O_WRONLY);
    check(files[i].direct >= 0 && files[i].buffered >= 0, words[3 + i]);
    files[i].next = offset;
    for (int t = 0; t < kDepth; t++) pthread_create(&files[i].threads[t], NULL, write_requests, &files[i]);
  }
  for (int i = 0; i < count - 3; i++) {
    for (int t = 0; t < kDepth; t++) pthread_join(files[i].threads[t], NULL);
    check(fsync(files[i].buffered) == 0, "fsync");
  }
  clock_gettime(CLOCK_MONOTONIC, &ended);
  const double seconds = ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) / 1e9;
  printf("%.0f\n", length * (count - 3.0) / seconds);
  return 0;
}
