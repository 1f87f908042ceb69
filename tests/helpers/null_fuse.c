// null_fuse: a FUSE file system that does as little as possible. It has one file, "f", which has the length that was
// written to it but no content. Each WRITE is answered at once.
//
//   null_fuse MOUNTPOINT    runs in the foreground until it is unmounted
//
// The time of a copy to it is the kernel's share of any copy through FUSE. tests/bench shows it beside ckptfs as the
// lower bound.
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { kFile = 2 };

static off_t length;

static struct stat attributes_of(fuse_ino_t inode) {
  struct stat st = {0};
  st.st_ino = inode;
  st.st_mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
  st.st_nlink = 1;
  st.st_size = inode == FUSE_ROOT_ID ? 0 : length;
  return st;
}

static void set_up(void* user, struct fuse_conn_info* connection) {
  (void)user;
  fuse_unset_feature_flag(connection, FUSE_CAP_WRITEBACK_CACHE);
  connection->max_write = 1 << 20;
}

static void look_up(fuse_req_t request, fuse_ino_t parent, const char* name) {
  struct fuse_entry_param entry = {0};
  (void)parent;
  if (strcmp(name, "f") != 0) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  entry.ino = kFile;
  entry.attr = attributes_of(kFile);
  entry.attr_timeout = entry.entry_timeout = 1;
  fuse_reply_entry(request, &entry);
}

static void get_attributes(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info* file) {
  const struct stat st = attributes_of(inode);
  (void)file;
  fuse_reply_attr(request, &st, 1);
}

static void set_attributes(fuse_req_t request, fuse_ino_t inode, struct stat* changed, int which,
                           struct fuse_file_info* file) {
  if (which & FUSE_SET_ATTR_SIZE) length = changed->st_size;
  get_attributes(request, inode, file);
}

static void open_file(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info* file) {
  (void)inode;
  file->direct_io = 1;  // as ckptfs opens what it adopts
  fuse_reply_open(request, file);
}

static void take(fuse_req_t request, fuse_ino_t inode, const char* bytes, size_t size, off_t offset,
                 struct fuse_file_info* file) {
  (void)inode, (void)bytes, (void)file;
  if (offset + (off_t)size > length) length = offset + (off_t)size;
  fuse_reply_write(request, size);
}

int main(int count, char** words) {
  static const struct fuse_lowlevel_ops operations = {.init = set_up,
                                                      .lookup = look_up,
                                                      .getattr = get_attributes,
                                                      .setattr = set_attributes,
                                                      .open = open_file,
                                                      .write = take};
  struct fuse_args arguments = FUSE_ARGS_INIT(1, words);
  struct fuse_session* session;
  const int32_t none = 0;
  int failed, awake;
  if (count != 2) {
    fprintf(stderr, "usage: %s MOUNTPOINT\n", words[0]);
    return 2;
  }
  session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
  if (session == NULL || fuse_session_mount(session, words[1]) != 0) return 1;
  awake = open("/dev/cpu_dma_latency", O_RDWR);  // as the daemon does during copies
  if (awake >= 0 && write(awake, &none, sizeof none) < 0) perror("/dev/cpu_dma_latency");
  failed = fuse_session_loop(session);
  fuse_session_unmount(session);
  fuse_session_destroy(session);
  return failed != 0;
}
