/* The C interface of libckptfs: tensors straight between files (of a ckptfs mount or not) and device memory.
 *
 * Functions that can fail return 0, or an errno; ckptfs_last_error() has the words. Handles are the caller's to close,
 * those of loads and saves before the staging they use. Sizes and offsets are in bytes. `memory` is host memory or the
 * device's; `stream` is the device's own (cudaStream_t; NULL: the default one).
 *
 * Thread safety: handles may be used by one thread at a time, a ckptfs_staging by any number. Texts that are returned
 * stay until their handle is closed.
 */
#ifndef CKPTFS_H
#define CKPTFS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define CKPTFS_ABI 1 /* another one where anything below has changed */
uint32_t ckptfs_abi(void);

/* Of the last call of this thread that failed. */
const char* ckptfs_last_error(void);

/* What the library has to say beside errors (fallbacks, mostly): by default lines on stderr. `level`: 0 debug, 1 info,
 * 2 warning, 3 error. Called from any thread; NULL: back to stderr. */
typedef void (*ckptfs_log_function)(int level, const char* line);
void ckptfs_set_log(ckptfs_log_function function);

/* --- The ring of pinned host memory that all goes through. `device`: "cuda:0", "twin" (host memory only), or "" for
 * cuda:0 where there is one. 0: as usual (256 MiB, slots of 8 MiB). */
typedef struct ckptfs_staging ckptfs_staging;
int ckptfs_staging_open(const char* device, uint64_t bytes, uint64_t slot, uint32_t lanes, ckptfs_staging** staging);
void ckptfs_staging_close(ckptfs_staging* staging);
const char* ckptfs_staging_device(const ckptfs_staging* staging);
/* What the kernel lets it use: "io_uring, registered memory", or less ("threads"). */
const char* ckptfs_staging_way(const ckptfs_staging* staging);

/* Memory of its device, for whoever has no framework that gives it out. */
int ckptfs_memory_allocate(ckptfs_staging* staging, uint64_t bytes, void** memory);
int ckptfs_memory_free(ckptfs_staging* staging, void* memory);

/* --- A checkpoint to be loaded: a step's folder, a .safetensors file, or a file of torch.save (whose "tensors" are its
 * storages, by their keys). Headers are read; nothing of it is ever executed. */
typedef struct ckptfs_checkpoint ckptfs_checkpoint;
int ckptfs_checkpoint_open(const char* path, ckptfs_checkpoint** checkpoint);
void ckptfs_checkpoint_close(ckptfs_checkpoint* checkpoint);

typedef struct {
  const char* name;
  const char* dtype; /* as safetensors says it: "BF16" */
  const uint64_t* shape;
  uint32_t dimensions;
  uint64_t bytes;
} ckptfs_tensor;
uint64_t ckptfs_checkpoint_tensors(const ckptfs_checkpoint* checkpoint);
int ckptfs_checkpoint_tensor(const ckptfs_checkpoint* checkpoint, uint64_t index, ckptfs_tensor* tensor);
/* What of a step could not be read, and is not among the tensors; NULL: no more. */
const char* ckptfs_checkpoint_problem(const ckptfs_checkpoint* checkpoint, uint64_t index);

/* Bytes [offset, offset + bytes) of a tensor go to `memory`. */
typedef struct {
  uint64_t tensor;
  uint64_t offset;
  uint64_t bytes;
  void* memory;
} ckptfs_target;

typedef struct {
  uint64_t bytes;         /* that were asked for */
  uint64_t read;          /* from files */
  uint64_t direct;        /* of these, past the page cache */
  uint64_t straight;      /* of these, without a copy in host memory */
  uint64_t through_mount; /* files of a mount that were not read past it */
} ckptfs_load_report;

/* Returns when all is there. What is on the stream now is waited for before anything is written. `report` may be NULL.
 */
int ckptfs_load(ckptfs_checkpoint* checkpoint, ckptfs_staging* staging, const ckptfs_target* targets, uint64_t count,
                void* stream, ckptfs_load_report* report);

/* --- A step that is saved, this rank's part of it. `attempt`: letters and digits, the same on all ranks, another one
 * each time. Nothing of it is seen as a step before it is committed. */
typedef struct ckptfs_save ckptfs_save;
int ckptfs_save_begin(ckptfs_staging* staging, const char* series, const char* tag, const char* attempt, uint32_t rank,
                      uint32_t world_size, ckptfs_save** save);
/* Waits for what is under way. What was not committed stays, and is listed as such. */
void ckptfs_save_close(ckptfs_save* save);
/* Where its files lie until it is committed. */
const char* ckptfs_save_folder(const ckptfs_save* save);

typedef struct {
  const char* name;
  const char* dtype;
  const uint64_t* shape;
  uint32_t dimensions;
  const void* memory;
  uint64_t bytes;
} ckptfs_saved_tensor;
/* One safetensors file of these tensors; what is on the stream now is waited for before they are read. */
int ckptfs_save_tensors(ckptfs_save* save, const char* name, const ckptfs_saved_tensor* tensors, uint64_t count,
                        void* stream);

typedef struct {
  const void* memory;
  uint64_t bytes;
  uint64_t offset;
} ckptfs_part;
/* One file of `bytes`, with these parts at their offsets and zeros elsewhere. */
int ckptfs_save_file(ckptfs_save* save, const char* name, uint64_t bytes, const ckptfs_part* parts, uint64_t count,
                     void* stream);

/* The memory may change. */
int ckptfs_save_wait_copied(ckptfs_save* save);
/* This rank's files are on the disk, with their manifest, and (on a mount) frozen. */
int ckptfs_save_wait_durable(ckptfs_save* save);
/* The step appears, if all ranks' files are there (`committed` is 1): with the last of them. */
int ckptfs_save_commit(ckptfs_save* save, int seal, int* committed);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
