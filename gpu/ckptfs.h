/* The C interface of libckptfs. It moves tensors directly between files and device memory, on a ckptfs mount or not.
 *
 * A function that can fail returns 0 or an errno; ckptfs_last_error() then has the words. The caller closes all
 * handles, those of checkpoints and saves before the staging that they use. Sizes and offsets are in bytes. `memory` is
 * host memory or the device's. `stream` is the device's own type (cudaStream_t); NULL is the default stream.
 *
 * Thread safety: only one thread at a time may use a handle. A ckptfs_staging may be used by any number of threads.
 * Returned texts are valid until their handle is closed.
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

#define CKPTFS_ABI 1 /* changes whenever anything below changes */
uint32_t ckptfs_abi(void);

/* The words for this thread's last call that failed. */
const char* ckptfs_last_error(void);

/* Sets the function that gets the library's log lines, which are mostly about fallbacks; NULL restores the default,
 * stderr. `level` is 0 for debug, 1 for info, 2 for a warning, 3 for an error. It may be called from any thread. */
typedef void (*ckptfs_log_function)(int level, const char* line);
void ckptfs_set_log(ckptfs_log_function function);

/* --- Staging: the ring of pinned host memory that all transfers use. `device` is "cuda:0", "twin" (host memory only),
 * or "" for cuda:0 if there is one and else the twin. 0 means the default (256 MiB, slots of 8 MiB). */
typedef struct ckptfs_staging ckptfs_staging;
int ckptfs_staging_open(const char* device, uint64_t bytes, uint64_t slot, uint32_t lanes, ckptfs_staging** staging);
void ckptfs_staging_close(ckptfs_staging* staging);
const char* ckptfs_staging_device(const ckptfs_staging* staging);
/* Which of the faster ways the kernel allows: "io_uring, registered memory", "io_uring", or "threads". */
const char* ckptfs_staging_way(const ckptfs_staging* staging);

/* Allocates memory of its device, for programs without a framework that does so. */
int ckptfs_memory_allocate(ckptfs_staging* staging, uint64_t bytes, void** memory);
int ckptfs_memory_free(ckptfs_staging* staging, void* memory);

/* --- A checkpoint to be loaded: a step's folder, a .safetensors file, or a file of torch.save (whose "tensors" are its
 * storages, named by their keys). Opening reads the headers. No code in the files is ever executed. */
typedef struct ckptfs_checkpoint ckptfs_checkpoint;
int ckptfs_checkpoint_open(const char* path, ckptfs_checkpoint** checkpoint);
void ckptfs_checkpoint_close(ckptfs_checkpoint* checkpoint);

typedef struct {
  const char* name;
  const char* dtype; /* the name that safetensors uses: "BF16" */
  const uint64_t* shape;
  uint32_t dimensions;
  uint64_t bytes;
} ckptfs_tensor;
uint64_t ckptfs_checkpoint_tensors(const ckptfs_checkpoint* checkpoint);
int ckptfs_checkpoint_tensor(const ckptfs_checkpoint* checkpoint, uint64_t index, ckptfs_tensor* tensor);
/* The index-th part of a step that could not be read and is not among the tensors; NULL after the last. */
const char* ckptfs_checkpoint_problem(const ckptfs_checkpoint* checkpoint, uint64_t index);

/* Bytes [offset, offset + bytes) of a tensor are loaded to `memory`. */
typedef struct {
  uint64_t tensor;
  uint64_t offset;
  uint64_t bytes;
  void* memory;
} ckptfs_target;

typedef struct {
  uint64_t bytes;         /* requested */
  uint64_t read;          /* read from files */
  uint64_t direct;        /* of those, read past the page cache */
  uint64_t straight;      /* of those, read without a copy in host memory */
  uint64_t through_mount; /* number of files of a mount that could not be read past it */
} ckptfs_load_report;

/* Returns when everything is loaded. It writes nothing before the work that is on the stream now has ended. `report`
 * may be NULL. */
int ckptfs_load(ckptfs_checkpoint* checkpoint, ckptfs_staging* staging, const ckptfs_target* targets, uint64_t count,
                void* stream, ckptfs_load_report* report);

/* --- This rank's part of a step to be saved. `attempt` is made of letters and digits, is the same on all ranks, and
 * differs for each attempt. Nothing is visible as a step before the commit. */
typedef struct ckptfs_save ckptfs_save;
int ckptfs_save_begin(ckptfs_staging* staging, const char* series, const char* tag, const char* attempt, uint32_t rank,
                      uint32_t world_size, ckptfs_save** save);
/* Waits for what is in progress. Files that were not committed stay, in a folder that is not a step. */
void ckptfs_save_close(ckptfs_save* save);
/* The folder of the files until the commit. */
const char* ckptfs_save_folder(const ckptfs_save* save);

typedef struct {
  const char* name;
  const char* dtype;
  const uint64_t* shape;
  uint32_t dimensions;
  const void* memory;
  uint64_t bytes;
} ckptfs_saved_tensor;
/* Saves these tensors as one safetensors file. It reads them after the work that is on the stream now has ended. */
int ckptfs_save_tensors(ckptfs_save* save, const char* name, const ckptfs_saved_tensor* tensors, uint64_t count,
                        void* stream);

typedef struct {
  const void* memory;
  uint64_t bytes;
  uint64_t offset;
} ckptfs_part;
/* Saves one file of `bytes`, with these parts at their offsets and zeros elsewhere. */
int ckptfs_save_file(ckptfs_save* save, const char* name, uint64_t bytes, const ckptfs_part* parts, uint64_t count,
                     void* stream);

/* Waits until the memory may change. */
int ckptfs_save_wait_copied(ckptfs_save* save);
/* Waits until this rank's files and its manifest are on the disk. On a mount the files are then frozen. */
int ckptfs_save_wait_durable(ckptfs_save* save);
/* Makes the step appear if all ranks' files are there, and sets `committed` to 1 if it has. The last rank does it. */
int ckptfs_save_commit(ckptfs_save* save, int seal, int* committed);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
