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

#define CKPTFS_ABI 6 /* changes whenever anything below changes */
uint32_t ckptfs_abi(void);

/* The words for this thread's last call that failed. */
const char* ckptfs_last_error(void);

/* Sets the function that gets the library's log lines, which are mostly about fallbacks; NULL restores the default,
 * stderr. `level` is 0 for debug, 1 for info, 2 for a warning, 3 for an error. It may be called from any thread. */
typedef void (*ckptfs_log_function)(int level, const char* line);
void ckptfs_set_log(ckptfs_log_function function);

/* --- Staging: the ring of pinned host memory that all transfers use. `device` is "cuda:0", "twin" (host memory only),
 * or "" for cuda:0 if there is one and else the twin. 0 means the default (256 MiB; slots of 8 MiB, or of 1 MiB
 * for the twin). */
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
 * storages, named by their keys). Opening reads the headers. No code in the files is ever executed. `names` is "" or
 * NULL for the names that views have, or "saved": then the tensors of a DCP checkpoint have the names (fqn) that they
 * were saved by. For other checkpoints that is the same.
 *
 * `path` may also be the address of a committed step in a remote: "s3://bucket/run7/global_step100",
 * "file:///lustre/run7/global_step100", or ".../run7/@1/global_step100" for what slot 1 holds of it. S3 is asked as the
 * environment of the AWS tools says. `seconds` is how long each request may take, tries again included; 0 is 60. A
 * child of fork must not close a checkpoint that its parent has opened.
 *
 * `stop` is NULL, or a byte that outlives the checkpoint. Once another thread sets it to 1, what waits for a remote,
 * here or in a load, ends within a second: ECANCELED. Files are read to the end all the same. */
typedef struct ckptfs_checkpoint ckptfs_checkpoint;
int ckptfs_checkpoint_open(const char* path, const char* names, double seconds, const volatile unsigned char* stop,
                           ckptfs_checkpoint** checkpoint);
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
  uint64_t read;          /* read from files, or fetched from a remote */
  uint64_t direct;        /* of those, read past the page cache */
  uint64_t straight;      /* of those, read without a copy in host memory */
  uint64_t through_mount; /* number of files of a mount that could not be read past it */
  uint64_t checked;       /* of those read, compared with the digests in the step's manifests, or of the remote */
} ckptfs_load_report;

/* Returns when everything is loaded. Of files that were saved with digests, each chunk that is read whole is checked,
 * of a remote every chunk: if it differs, the load fails with EIO and names the file and the tensors. It writes nothing
 * before the work that is on the stream now has ended. `report` may be NULL. */
int ckptfs_load(ckptfs_checkpoint* checkpoint, ckptfs_staging* staging, const ckptfs_target* targets, uint64_t count,
                void* stream, ckptfs_load_report* report);

/* A box is a rectangular part of a tensor: `offsets` and `sizes` have an element for each of its dimensions. Elements
 * [begin, end) of the box, in row-major order, are loaded to `memory`, where they are contiguous. */
typedef struct {
  uint64_t tensor;
  const uint64_t* offsets;
  const uint64_t* sizes;
  uint64_t begin;
  uint64_t end;
  void* memory;
} ckptfs_box_target;
/* The same as ckptfs_load() for boxes. It reads only what the boxes need, and small gaps between that. */
int ckptfs_load_boxes(ckptfs_checkpoint* checkpoint, ckptfs_staging* staging, const ckptfs_box_target* targets,
                      uint64_t count, void* stream, ckptfs_load_report* report);

/* How long the ranks of a group took to load from the checkpoint: for each stage, the seconds of the rank that it took
 * longest. */
typedef struct {
  const char* name; /* for example "plan", "read" */
  double seconds;
} ckptfs_stage;
/* Tells the daemon of the checkpoint's mount, whose page and metrics show it: `seconds` in all; rank `slowest`, on the
 * machine `host`, took longest for its own part. Does nothing if the checkpoint is on no mount. */
int ckptfs_checkpoint_loaded(const ckptfs_checkpoint* checkpoint, uint32_t slowest, const char* host, double seconds,
                             const ckptfs_stage* stages, uint64_t count);

/* --- This rank's part of a step to be saved. `attempt` is made of letters and digits, is the same on all ranks, and
 * differs for each attempt. Nothing is visible as a step before the commit. */
typedef struct ckptfs_save ckptfs_save;
int ckptfs_save_begin(ckptfs_staging* staging, const char* series, const char* tag, const char* attempt, uint32_t rank,
                      uint32_t world_size, ckptfs_save** save);
/* Waits for what is in progress. Files that were not committed stay, in a folder that is not a step. */
void ckptfs_save_close(ckptfs_save* save);
/* The folder of the files until the commit. */
const char* ckptfs_save_folder(const ckptfs_save* save);

/* Whether the manifest gets the digests (BLAKE3 of each MiB) of the files that are added from now on; without this call
 * it does not. A load checks them. */
int ckptfs_save_digests(ckptfs_save* save, int wanted);

typedef struct {
  const char* name;
  const char* dtype;
  const uint64_t* shape;
  uint32_t dimensions;
  const void* memory;
  uint64_t bytes;
  /* Of a piece of a tensor that several ranks save: the whole's name and shape, and where the piece begins in it. Both
   * have `dimensions` elements. NULL: the tensor is whole. `name` must differ from that of all others in the file. */
  const char* of;
  const uint64_t* whole;
  const uint64_t* offsets;
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

/* Adds seconds to a stage of the timing in the manifest, for example "plan" or "collective"; until wait_durable. The
 * library measures "copy", "write" and "sync" itself. */
int ckptfs_save_note(ckptfs_save* save, const char* stage, double seconds);

/* Waits until the memory may change. */
int ckptfs_save_wait_copied(ckptfs_save* save);
/* Waits until this rank's files and its manifest are on the disk. On a mount the files are then frozen. */
int ckptfs_save_wait_durable(ckptfs_save* save);
/* Makes the step appear if all ranks' files are there, and sets `committed` to 1 if it has. The last rank does it. */
int ckptfs_save_commit(ckptfs_save* save, int seal, int* committed);

/* --- Groups of ranks. A holding is a box of a tensor, whose elements a rank has contiguously in memory, in row-major
 * order. Shapes, offsets and sizes are in elements, one for each dimension, and so are `begin` and `end` below. */
typedef struct {
  const char* name;
  const char* dtype;     /* the name that safetensors uses */
  const uint64_t* shape; /* of the whole tensor */
  const uint64_t* offsets;
  const uint64_t* sizes;
  uint32_t dimensions;
} ckptfs_holding;
/* Describes what a rank holds. The same holdings in the same order give the same bytes. */
int ckptfs_describe(const ckptfs_holding* holdings, uint64_t count, void** bytes, uint64_t* size);
void ckptfs_bytes_free(void* bytes);
/* BLAKE3 */
int ckptfs_digest(const void* bytes, uint64_t size, unsigned char digest[32]);

/* Who writes which bytes of a save, or reads which of a load. All ranks make the same plan from the same descriptions.
 * `hosts` has a number for the machine of each rank. `whole` is 1 if elements that no rank holds are an error, as in a
 * save, and 0 for a load. The plan does not refer to the arguments. */
typedef struct ckptfs_plan ckptfs_plan;
int ckptfs_plan_make(const void* const* descriptions, const uint64_t* sizes, const uint32_t* hosts, uint32_t ranks,
                     int whole, ckptfs_plan** plan);
void ckptfs_plan_close(ckptfs_plan* plan);

/* Elements [begin, end) of a holding of a rank, in row-major order. An empty tensor is a part, too. */
typedef struct {
  uint64_t holding; /* its index in the rank's description */
  uint64_t begin;
  uint64_t end;
  uint64_t message; /* see ckptfs_plan_held */
  uint32_t holders; /* the number of the set of ranks that hold these elements: ckptfs_plan_holders */
  uint32_t owner;   /* the rank that writes them, or that reads them and passes them on */
} ckptfs_planned;
/* What a rank owns. The array is valid until the next call for this plan. */
int ckptfs_plan_owned(ckptfs_plan* plan, uint32_t rank, const ckptfs_planned** parts, uint64_t* count);
/* All that a rank holds, with the owners; the array is valid until the next call for this plan. All ranks of a holder
 * set get its parts in the same order, and those sets that two ranks share, too. Parts with the same `holders` and
 * `message` follow each other, and are one message: the same elements in the same order at each rank, in one part at
 * one rank and perhaps in several at another. */
int ckptfs_plan_held(ckptfs_plan* plan, uint32_t rank, const ckptfs_planned** parts, uint64_t* count);
/* The ranks of a holder set, ascending. The array is valid until the plan is closed. */
int ckptfs_plan_holders(const ckptfs_plan* plan, uint32_t holders, const uint32_t** ranks, uint64_t* count);
/* The bytes that each rank owns, an entry for each. The sum is that of all different bytes. */
const uint64_t* ckptfs_plan_loads(const ckptfs_plan* plan);

/* Cuts elements [begin, end) of a box into boxes, in order. Each is contiguous in the box's memory. `boxes` gets for
 * each of them the offsets in the tensor and then the sizes. It has room for two boxes for each dimension, and for one
 * more. */
int ckptfs_boxes_of_range(const uint64_t* offsets, const uint64_t* sizes, uint32_t dimensions, uint64_t begin,
                          uint64_t end, uint64_t* boxes, uint64_t* count);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
