// faulty_disk: a disk in memory that logs each write and each flush, fails on command, and can go back to any moment of
// the log. It is a file of a FUSE file system, on which a loop device can stand.
//
//   faulty_disk MOUNTPOINT MIB LOG          a new disk of zeros, and a new LOG
//   faulty_disk MOUNTPOINT MIB LOG replay   the disk that LOG describes; LOG is not changed
//
// It runs in the foreground until it is unmounted. One thread serves all requests, so the log has one order.
//
//   MOUNTPOINT/disk      the disk; an fsync of it is a flush
//   MOUNTPOINT/mark      each write to it becomes a mark in the log
//   MOUNTPOINT/control   each write is one command, EINVAL if there is no such command; a read gives counters as JSON
//
// Commands:
//   fault WHAT WHERE [KEY=NUMBER]...   WHAT: eio, enospc, drop (success, but nothing is written), tear (the first half
//                                      is written, then EIO) or delay. WHERE: read, write, flush, or of the writes
//                                      only data, log or metadata (of XFS).
//       from=, to=    only requests that touch these bytes of the disk
//       skip=         let this many requests pass first
//       count=        then hit this many requests (default 1; 0: no limit)
//       percent=, seed=   hit each request with this probability
//       ms=           length of a delay
//   heal               drop all faults
//   at RECORD          (replay) restores the disk as it was before this record of the log; the first one is 0
//   take RECORD [FROM TO]   (replay) applies this record, or only these bytes of its data
//
// A record of the log is three uint64_t (kind, offset, length), followed by `length` bytes for a write or a mark. The
// kind distinguishes writes of data, of XFS's log and of XFS's metadata, because XFS relies on whole blocks of the
// latter two kinds. The log has what reached the disk: nothing of a failed write, and the first half of a torn one.
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

enum { kDisk = 2, kMark, kControl };
enum { kSector = 512, kBlock = 4096, kMostFaults = 16 };
enum record_kind { kZeros = 1, kFlush, kMarked, kDataWritten, kLogWritten, kMetadataWritten };
enum what { kEio, kEnospc, kDrop, kTear, kDelay, kWhats };
enum where { kReads, kWrites, kFlushes, kData, kLog, kMetadata, kWheres };

static const char* const what_names[kWhats] = {"eio", "enospc", "drop", "tear", "delay"};
static const char* const where_names[kWheres] = {"read", "write", "flush", "data", "log", "metadata"};
static const char* const file_names[] = {"disk", "mark", "control"};

struct record {
  uint64_t kind, offset, length;
};

struct fault {
  enum what what;
  enum where where;
  uint64_t from, to, skip, count, percent, seed, ms;
  bool unlimited;
};

struct old_block {
  uint64_t block;
  uint8_t bytes[kBlock];
};

static uint8_t* image;
static uint64_t image_size;
static int log_file;
static bool replaying;

static struct fault faults[kMostFaults];
static int fault_count;
static uint64_t hits[kWhats];
static uint64_t records, writes, flushes;

// For replay: where each record begins in the log, how many of them are applied, and the old content of changed blocks.
static uint64_t* starts;
static uint64_t applied;
static struct old_block** undo;
static uint64_t undo_count, undo_room;
static bool* is_saved;

static void give_up(const char* what) {
  perror(what);
  exit(1);
}

static void* must_have(void* memory) {
  if (memory == NULL) give_up("memory");
  return memory;
}

// --- The image

static void save_blocks(uint64_t offset, uint64_t length) {
  if (length == 0) return;
  for (uint64_t block = offset / kBlock; block <= (offset + length - 1) / kBlock; ++block) {
    if (is_saved[block]) continue;
    if (undo_count == undo_room) {
      undo_room = 2 * undo_room + 1024;
      undo = must_have(realloc(undo, undo_room * sizeof *undo));
    }
    struct old_block* const old = must_have(malloc(sizeof *old));
    old->block = block;
    memcpy(old->bytes, image + block * kBlock, kBlock);
    undo[undo_count++] = old;
    is_saved[block] = true;
  }
}

static void forget_changes(void) {
  while (undo_count > 0) {
    struct old_block* const old = undo[--undo_count];
    memcpy(image + old->block * kBlock, old->bytes, kBlock);
    is_saved[old->block] = false;
    free(old);
  }
}

// If `bytes` is NULL, it writes zeros.
static void change_image(const void* bytes, uint64_t offset, uint64_t length) {
  if (bytes != NULL) {
    memcpy(image + offset, bytes, length);
  } else if (offset % kBlock == 0 && length % kBlock == 0) {
    madvise(image + offset, length, MADV_DONTNEED);
  } else {
    memset(image + offset, 0, length);
  }
}

// --- The log

static void write_all(const void* bytes, uint64_t length) {
  const char* at = bytes;
  while (length > 0) {
    const ssize_t done = write(log_file, at, length);
    if (done <= 0) give_up("log");
    at += done, length -= (uint64_t)done;
  }
}

static void append(enum record_kind kind, uint64_t offset, uint64_t length, const void* bytes) {
  const struct record record = {kind, offset, length};
  write_all(&record, sizeof record);
  if (bytes != NULL) write_all(bytes, length);
  ++records;
}

static bool has_data(const struct record* record) { return record->kind >= kMarked; }

static void read_all(void* bytes, uint64_t length, uint64_t at) {
  if (pread(log_file, bytes, length, (off_t)at) != (ssize_t)length) give_up("log");
}

static void find_records(void) {
  struct record record;
  uint64_t at = 0, room = 0;
  while (pread(log_file, &record, sizeof record, (off_t)at) == (ssize_t)sizeof record) {
    if (records == room) {
      room = 2 * room + 1024;
      starts = must_have(realloc(starts, room * sizeof *starts));
    }
    starts[records++] = at;
    at += sizeof record + (has_data(&record) ? record.length : 0);
  }
}

// Applies the bytes from `from` to `to` of a record's data. If it is only for a while, the old content is saved for
// forget_changes().
static void apply(uint64_t number, uint64_t from, uint64_t to, bool for_a_while) {
  struct record record;
  read_all(&record, sizeof record, starts[number]);
  if (record.kind == kFlush || record.kind == kMarked) return;
  if (to > record.length) to = record.length;
  if (from >= to) return;
  if (for_a_while) save_blocks(record.offset + from, to - from);
  if (record.kind == kZeros) {
    change_image(NULL, record.offset + from, to - from);
  } else {
    read_all(image + record.offset + from, to - from, starts[number] + sizeof record + from);
  }
}

static int go_to(uint64_t number) {
  if (number > records) return EINVAL;
  forget_changes();
  if (number < applied) {
    change_image(NULL, 0, image_size);
    applied = 0;
  }
  for (; applied < number; ++applied) apply(applied, 0, UINT64_MAX, false);
  return 0;
}

// --- Which part of XFS a write is for

static uint64_t big_endian(const uint8_t* at, int bytes) {
  uint64_t value = 0;
  for (int byte = 0; byte < bytes; ++byte) value = value << 8 | at[byte];
  return value;
}

static bool is_in_log(uint64_t offset) {
  const uint64_t block_size = big_endian(image + 4, 4), first = big_endian(image + 48, 8);
  const uint64_t in_group = big_endian(image + 84, 4), count = big_endian(image + 96, 4);
  const int bits = image[124];
  if (memcmp(image, "XFSB", 4) != 0) return false;
  const uint64_t begin = (first >> bits) * in_group + (first & ((UINT64_C(1) << bits) - 1));
  return offset >= begin * block_size && offset < (begin + count) * block_size;
}

static bool is_metadata(const uint8_t* sector, uint64_t offset) {
  static const char magics[][5] = {"XFSB", "XAGF", "XAGI", "XAFL", "AB3B", "AB3C", "IAB3", "FIB3",
                                   "R3FC", "RMB3", "BMA3", "XDB3", "XDD3", "XDF3", "XSLM", "XARM"};
  for (size_t at = 0; at < sizeof magics / sizeof *magics; ++at) {
    if (memcmp(sector, magics[at], 4) == 0) return true;
  }
  if (memcmp(sector, "IN", 2) == 0 && sector[4] == 3) return true;
  const uint64_t tree = big_endian(sector + 8, 2);
  return (tree == 0x3ebe || tree == 0x3df1 || tree == 0x3dff || tree == 0x3bee) &&
         big_endian(sector + 16, 8) == offset / kSector;
}

static enum where kind_of(const void* bytes, uint64_t offset, uint64_t length) {
  if (is_in_log(offset)) return kLog;
  for (uint64_t at = 0; bytes != NULL && at + kSector <= length; at += kSector) {
    if (is_metadata((const uint8_t*)bytes + at, offset + at)) return kMetadata;
  }
  return kData;
}

// --- Faults

static uint64_t next_random(uint64_t* state) {
  *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
  return *state;
}

static bool concerns(const struct fault* fault, enum where where, uint64_t offset, uint64_t length) {
  const bool is_write = where == kData || where == kLog || where == kMetadata;
  if (fault->where != where && !(fault->where == kWrites && is_write)) return false;
  return where == kFlushes || (offset < fault->to && offset + length > fault->from);
}

static bool strikes(struct fault* fault) {
  if (!fault->unlimited && fault->count == 0) return false;
  if (fault->percent < 100 && next_random(&fault->seed) % 100 >= fault->percent) return false;
  if (fault->skip > 0) {
    --fault->skip;
    return false;
  }
  if (!fault->unlimited) --fault->count;
  ++hits[fault->what];
  return true;
}

static const struct fault* fault_for(enum where where, uint64_t offset, uint64_t length) {
  for (int at = 0; at < fault_count; ++at) {
    if (concerns(&faults[at], where, offset, length) && strikes(&faults[at])) return &faults[at];
  }
  return NULL;
}

static void sleep_for(uint64_t ms) {
  const struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
  nanosleep(&time, NULL);
}

// Returns the errno of a request that fails as a whole, else 0.
static int error_of(const struct fault* fault) {
  if (fault == NULL) return 0;
  if (fault->what == kDelay) sleep_for(fault->ms);
  return fault->what == kEio || fault->what == kTear ? EIO : fault->what == kEnospc ? ENOSPC : 0;
}

static void put(const void* bytes, uint64_t offset, uint64_t length, enum where where) {
  if (length == 0) return;
  if (replaying) {
    save_blocks(offset, length);
  } else {
    append(bytes == NULL ? kZeros : kDataWritten + (where - kData), offset, length, bytes);
  }
  change_image(bytes, offset, length);
}

static int change(const void* bytes, uint64_t offset, uint64_t length) {
  if (offset > image_size || length > image_size - offset) return ENOSPC;
  const enum where where = kind_of(bytes, offset, length);
  const struct fault* const fault = fault_for(where, offset, length);
  const int error = error_of(fault);
  ++writes;
  if (fault == NULL || fault->what == kDelay) {
    put(bytes, offset, length, where);
  } else if (fault->what == kTear) {
    put(bytes, offset, length / 2 / kSector * kSector, where);
  }
  return error;
}

static int flush(void) {
  const struct fault* const fault = fault_for(kFlushes, 0, 0);
  const int error = error_of(fault);
  ++flushes;
  if (error == 0 && (fault == NULL || fault->what != kDrop) && !replaying) append(kFlush, 0, 0, NULL);
  return error;
}

// --- Commands

static int index_of(const char* word, const char* const* names, int count) {
  for (int at = 0; word != NULL && at < count; ++at) {
    if (strcmp(word, names[at]) == 0) return at;
  }
  return -1;
}

static bool set_key(struct fault* fault, const char* key, uint64_t value) {
  static const char* const keys[] = {"from", "to", "skip", "count", "percent", "seed", "ms"};
  uint64_t* const fields[] = {&fault->from,    &fault->to,   &fault->skip, &fault->count,
                              &fault->percent, &fault->seed, &fault->ms};
  const int at = index_of(key, keys, sizeof keys / sizeof *keys);
  if (at < 0) return false;
  *fields[at] = value;
  return true;
}

static int add_fault(char** rest) {
  const int what = index_of(strtok_r(NULL, " \n", rest), what_names, kWhats);
  const int where = index_of(strtok_r(NULL, " \n", rest), where_names, kWheres);
  if (what < 0 || where < 0 || fault_count == kMostFaults) return EINVAL;
  struct fault fault = {
      .what = (enum what)what, .where = (enum where)where, .to = UINT64_MAX, .count = 1, .percent = 100, .seed = 1};
  for (char* word; (word = strtok_r(NULL, " \n", rest)) != NULL;) {
    char* const value = strchr(word, '=');
    if (value == NULL) return EINVAL;
    *value = '\0';
    if (!set_key(&fault, word, strtoull(value + 1, NULL, 10))) return EINVAL;
  }
  fault.unlimited = fault.count == 0;
  if (fault.seed == 0) fault.seed = 1;
  faults[fault_count++] = fault;
  return 0;
}

static int take(char** rest) {
  const char* const number = strtok_r(NULL, " \n", rest);
  const char* const from = strtok_r(NULL, " \n", rest);
  const char* const to = strtok_r(NULL, " \n", rest);
  if (number == NULL || (from != NULL && to == NULL) || strtoull(number, NULL, 10) >= records) return EINVAL;
  apply(strtoull(number, NULL, 10), from == NULL ? 0 : strtoull(from, NULL, 10),
        from == NULL ? UINT64_MAX : strtoull(to, NULL, 10), true);
  return 0;
}

static int command(char* line) {
  char* rest = NULL;
  const char* const verb = strtok_r(line, " \n", &rest);
  if (verb == NULL) return EINVAL;
  if (strcmp(verb, "fault") == 0) return add_fault(&rest);
  if (strcmp(verb, "heal") == 0) return fault_count = 0;
  if (!replaying) return EINVAL;
  if (strcmp(verb, "take") == 0) return take(&rest);
  const char* const number = strtok_r(NULL, " \n", &rest);
  return strcmp(verb, "at") == 0 && number != NULL ? go_to(strtoull(number, NULL, 10)) : EINVAL;
}

static int obey(const char* bytes, size_t size) {
  char* const line = must_have(calloc(1, size + 1));
  memcpy(line, bytes, size);
  const int error = command(line);
  free(line);
  return error;
}

static int counters(char* text, size_t room) {
  return snprintf(text, room,
                  "{\"records\": %" PRIu64 ", \"writes\": %" PRIu64 ", \"flushes\": %" PRIu64 ", \"eio\": %" PRIu64
                  ", \"enospc\": %" PRIu64 ", \"drop\": %" PRIu64 ", \"tear\": %" PRIu64 ", \"delay\": %" PRIu64 "}\n",
                  records, writes, flushes, hits[kEio], hits[kEnospc], hits[kDrop], hits[kTear], hits[kDelay]);
}

// --- Requests of the kernel

static struct stat attributes_of(fuse_ino_t inode) {
  struct stat st = {0};
  st.st_ino = inode;
  st.st_mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0600;
  st.st_nlink = 1;
  st.st_size = inode == kDisk ? (off_t)image_size : 0;
  return st;
}

static void set_up(void* user, struct fuse_conn_info* connection) {
  (void)user;
  fuse_unset_feature_flag(connection, FUSE_CAP_WRITEBACK_CACHE);
  connection->max_write = 1 << 20;
}

static void look_up(fuse_req_t request, fuse_ino_t parent, const char* name) {
  struct fuse_entry_param entry = {0};
  const int at = index_of(name, file_names, sizeof file_names / sizeof *file_names);
  (void)parent;
  if (at < 0) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  entry.ino = (fuse_ino_t)(kDisk + at);
  entry.attr = attributes_of(entry.ino);
  entry.attr_timeout = entry.entry_timeout = 3600;
  fuse_reply_entry(request, &entry);
}

static void get_attributes(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info* file) {
  const struct stat st = attributes_of(inode);
  (void)file;
  fuse_reply_attr(request, &st, 3600);
}

static void set_attributes(fuse_req_t request, fuse_ino_t inode, struct stat* changed, int which,
                           struct fuse_file_info* file) {
  (void)changed, (void)which;
  get_attributes(request, inode, file);
}

static void open_file(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info* file) {
  (void)inode;
  file->direct_io = 1;
  fuse_reply_open(request, file);
}

static void read_disk(fuse_req_t request, uint64_t offset, uint64_t size) {
  const int error = error_of(fault_for(kReads, offset, size));
  if (error != 0) {
    fuse_reply_err(request, error);
    return;
  }
  const uint64_t there = offset < image_size ? image_size - offset : 0;
  fuse_reply_buf(request, (const char*)image + offset, size < there ? size : there);
}

static void read_file(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, struct fuse_file_info* file) {
  char text[512];
  (void)file;
  if (inode == kDisk) {
    read_disk(request, (uint64_t)offset, size);
    return;
  }
  const size_t length = inode == kControl ? (size_t)counters(text, sizeof text) : 0;
  const size_t begin = (size_t)offset < length ? (size_t)offset : length;
  fuse_reply_buf(request, text + begin, size < length - begin ? size : length - begin);
}

static void write_file(fuse_req_t request, fuse_ino_t inode, const char* bytes, size_t size, off_t offset,
                       struct fuse_file_info* file) {
  int error = 0;
  (void)file;
  if (inode == kDisk) {
    error = change(bytes, (uint64_t)offset, size);
  } else if (inode == kControl) {
    error = obey(bytes, size);
  } else if (replaying) {
    error = EINVAL;
  } else {
    append(kMarked, 0, size, bytes);
  }
  if (error != 0) {
    fuse_reply_err(request, error);
  } else {
    fuse_reply_write(request, size);
  }
}

static void synchronize(fuse_req_t request, fuse_ino_t inode, int data_only, struct fuse_file_info* file) {
  (void)data_only, (void)file;
  fuse_reply_err(request, inode == kDisk ? flush() : 0);
}

static void allocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length,
                     struct fuse_file_info* file) {
  (void)file;
  const bool zeros = (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
  fuse_reply_err(request, inode == kDisk && zeros ? change(NULL, (uint64_t)offset, (uint64_t)length) : EOPNOTSUPP);
}

static void prepare(char** words) {
  const int flags = O_CLOEXEC | (replaying ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC | O_APPEND);
  image_size = strtoull(words[2], NULL, 10) << 20;
  if (image_size == 0) give_up("MIB");
  log_file = open(words[3], flags, 0600);
  if (log_file < 0) give_up(words[3]);
  image = mmap(NULL, image_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (image == MAP_FAILED) give_up("memory");
  madvise(image, image_size, MADV_NOHUGEPAGE);
  is_saved = must_have(calloc(image_size / kBlock, sizeof *is_saved));
  if (replaying) find_records();
  // The thread that writes pages back waits for this process, so this process must not wait for write-back. Where prctl
  // is not allowed, a test makes only a few dirty pages.
  prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
}

int main(int count, char** words) {
  static const struct fuse_lowlevel_ops operations = {.init = set_up,
                                                      .lookup = look_up,
                                                      .getattr = get_attributes,
                                                      .setattr = set_attributes,
                                                      .open = open_file,
                                                      .read = read_file,
                                                      .write = write_file,
                                                      .fsync = synchronize,
                                                      .fallocate = allocate};
  struct fuse_args arguments = FUSE_ARGS_INIT(1, words);
  struct fuse_session* session;
  int failed;
  replaying = count == 5 && strcmp(words[4], "replay") == 0;
  if (count != 4 && !replaying) {
    fprintf(stderr, "usage: %s MOUNTPOINT MIB LOG [replay]\n", words[0]);
    return 2;
  }
  prepare(words);
  session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
  if (session == NULL || fuse_session_mount(session, words[1]) != 0) return 1;
  failed = fuse_session_loop(session);
  fuse_session_unmount(session);
  fuse_session_destroy(session);
  return failed != 0;
}
