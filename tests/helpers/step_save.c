/* One rank that saves a step through libckptfs, or loads one back, for tests that kill it, or its daemon, meanwhile.
 *
 *   step_save save SERIES TAG ATTEMPT RANK WORLD BYTES SEED SEAL   prints what it has reached, a line each
 *   step_save load PATH                                            prints a line for each tensor: name, bytes, sum
 *   step_save columns SERIES TAG ATTEMPT RANK WORLD ROWS COLUMNS   saves this rank's columns of one tensor
 *
 * Three tensors of uneven length, BYTES in all, of numbers that SEED and the rank begin. Exits 1 with the library's
 * words on stderr where anything fails.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/ckptfs.h"

enum { TENSORS = 3 };

static void check(int outcome, const char* what) {
  if (outcome == 0) return;
  fprintf(stderr, "%s: %s (%d)\n", what, ckptfs_last_error(), outcome);
  exit(1);
}

static void reached(const char* what) {
  puts(what);
  fflush(stdout);
}

static void* allocate(size_t size) {
  void* memory = malloc(size == 0 ? 1 : size);
  if (memory == NULL) exit(1);
  return memory;
}

static void fill(unsigned char* memory, size_t size, uint64_t state) {
  for (size_t at = 0; at < size; ++at) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    memory[at] = (unsigned char)state;
  }
}

/* FNV-1a */
static uint64_t sum_of(const unsigned char* memory, size_t size) {
  uint64_t sum = 14695981039346656037U;
  for (size_t at = 0; at < size; ++at) sum = (sum ^ memory[at]) * 1099511628211U;
  return sum;
}

static ckptfs_staging* open_staging(void) {
  ckptfs_staging* staging = NULL;
  check(ckptfs_staging_open("twin", 4 << 20, 64 << 10, 2, &staging), "staging");
  return staging;
}

static void save(char** words) {
  ckptfs_staging* const staging = open_staging();
  const unsigned rank = (unsigned)atoi(words[3]);
  const size_t bytes = strtoull(words[5], NULL, 10);
  const uint64_t seed = strtoull(words[6], NULL, 10);
  unsigned char* const memory = allocate(bytes);
  fill(memory, bytes, seed * 1000003 + rank + 1);
  const uint64_t sizes[TENSORS] = {bytes / 2, bytes / 3, bytes - bytes / 2 - bytes / 3};
  const char* const names[TENSORS] = {"first", "second", "third"};
  ckptfs_saved_tensor tensors[TENSORS];
  size_t begin = 0;
  for (int at = 0; at < TENSORS; ++at) {
    tensors[at] = (ckptfs_saved_tensor){names[at], "U8", &sizes[at], 1, memory + begin, sizes[at], NULL, NULL, NULL};
    begin += sizes[at];
  }
  ckptfs_save* step = NULL;
  check(ckptfs_save_begin(staging, words[0], words[1], words[2], rank, (uint32_t)atoi(words[4]), &step), "begin");
  reached("begun");
  char name[64];
  snprintf(name, sizeof name, "rank%02u.safetensors", rank);
  check(ckptfs_save_tensors(step, name, tensors, TENSORS, NULL), "tensors");
  check(ckptfs_save_wait_copied(step), "copied");
  memset(memory, 0xEE, bytes);
  reached("copied");
  check(ckptfs_save_wait_durable(step), "durable");
  reached("durable");
  int committed = 0;
  check(ckptfs_save_commit(step, atoi(words[7]), &committed), "commit");
  reached(committed ? "committed" : "waiting");
  ckptfs_save_close(step);
  ckptfs_staging_close(staging);
  free(memory);
}

/* Of "layer.weight", ROWS x COLUMNS floats, each rank has as many columns as the others. An element is its number in
 * the whole, modulo 251. */
static void save_columns(char** words) {
  ckptfs_staging* const staging = open_staging();
  const uint64_t rank = strtoull(words[3], NULL, 10), world = strtoull(words[4], NULL, 10);
  const uint64_t whole[2] = {strtoull(words[5], NULL, 10), strtoull(words[6], NULL, 10)};
  const uint64_t shape[2] = {whole[0], whole[1] / world}, offsets[2] = {0, rank * shape[1]};
  const uint64_t bytes = shape[0] * shape[1] * sizeof(float);
  float* const memory = allocate(bytes);
  for (uint64_t row = 0; row < shape[0]; ++row) {
    for (uint64_t column = 0; column < shape[1]; ++column) {
      memory[row * shape[1] + column] = (float)((row * whole[1] + offsets[1] + column) % 251);
    }
  }
  ckptfs_save* step = NULL;
  check(ckptfs_save_begin(staging, words[0], words[1], words[2], (uint32_t)rank, (uint32_t)world, &step), "begin");
  char name[64];
  snprintf(name, sizeof name, "rank%02u.safetensors", (unsigned)rank);
  const ckptfs_saved_tensor tensor = {"layer.weight", "F32", shape, 2, memory, bytes, "layer.weight", whole, offsets};
  check(ckptfs_save_note(step, "plan", 0.25), "note");
  check(ckptfs_save_tensors(step, name, &tensor, 1, NULL), "tensors");
  check(ckptfs_save_wait_durable(step), "durable");
  int committed = 0;
  check(ckptfs_save_commit(step, 0, &committed), "commit");
  reached(committed ? "committed" : "waiting");
  ckptfs_save_close(step);
  ckptfs_staging_close(staging);
  free(memory);
}

static void load(const char* path) {
  ckptfs_staging* const staging = open_staging();
  ckptfs_checkpoint* checkpoint = NULL;
  check(ckptfs_checkpoint_open(path, "", 0, NULL, &checkpoint), "open");
  const uint64_t count = ckptfs_checkpoint_tensors(checkpoint);
  for (uint64_t at = 0; at < count; ++at) {
    ckptfs_tensor tensor;
    check(ckptfs_checkpoint_tensor(checkpoint, at, &tensor), "tensor");
    unsigned char* const memory = allocate(tensor.bytes);
    const ckptfs_target target = {at, 0, tensor.bytes, memory};
    ckptfs_load_report report;
    check(ckptfs_load(checkpoint, staging, &target, 1, NULL, &report), "load");
    printf("%s %llu %016llx %llu\n", tensor.name, (unsigned long long)tensor.bytes,
           (unsigned long long)sum_of(memory, tensor.bytes), (unsigned long long)report.through_mount);
    free(memory);
  }
  ckptfs_checkpoint_close(checkpoint);
  ckptfs_staging_close(staging);
}

int main(int count, char** words) {
  if (count == 10 && strcmp(words[1], "save") == 0) {
    save(words + 2);
  } else if (count == 3 && strcmp(words[1], "load") == 0) {
    load(words[2]);
  } else if (count == 9 && strcmp(words[1], "columns") == 0) {
    save_columns(words + 2);
  } else {
    fprintf(stderr,
            "usage: %s save SERIES TAG ATTEMPT RANK WORLD BYTES SEED SEAL | load PATH |\n"
            "columns SERIES TAG ATTEMPT RANK WORLD ROWS COLUMNS\n",
            words[0]);
    return 2;
  }
  return 0;
}
