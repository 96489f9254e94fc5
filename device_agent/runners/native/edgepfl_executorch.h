/* ExecuTorch programs behind a C interface, for a process without torch.
 *
 * A program is loaded once and run often.  Nothing here throws or ends the process on purpose: a call that fails says
 * so by its result, and edgepfl_error() says why.  A program is used by one thread at a time; different programs may run
 * at once.
 */
#ifndef EDGEPFL_EXECUTORCH_H
#define EDGEPFL_EXECUTORCH_H

#include <stddef.h>
#include <stdint.h>

/* Counts changes of this file after which an older caller would go wrong. */
#define EDGEPFL_ABI 1

#define EDGEPFL_RANK_LIMIT 8

#define EDGEPFL_PUBLIC __attribute__((visibility("default"))) /* everything else is built hidden */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct edgepfl_program edgepfl_program;

enum { EDGEPFL_INPUT = 0, EDGEPFL_OUTPUT = 1 };
enum { EDGEPFL_INT64 = 4, EDGEPFL_FLOAT32 = 6 }; /* ExecuTorch's own numbers; other types may appear too */

/* One input or output: a dense tensor in row-major order. */
typedef struct {
  int32_t type;
  int32_t rank;
  int64_t shape[EDGEPFL_RANK_LIMIT];
  uint64_t bytes;
  int32_t direct; /* 1: the caller's memory is read or written in place; 0: one copy a run */
} edgepfl_port;

/* EDGEPFL_ABI as the library was built. */
EDGEPFL_PUBLIC int32_t edgepfl_abi(void);

/* "executorch VERSION, ARCHITECTURE, COMPILER". */
EDGEPFL_PUBLIC const char *edgepfl_version(void);

/* Why this thread's last failing call failed; valid until its next call.  Never null. */
EDGEPFL_PUBLIC const char *edgepfl_error(void);

/* Loads method "forward" of a .pte file.  `data` stays the caller's, aligned to 16 bytes, and must outlive the program.
 * With one thread a program runs in the thread that calls it.  All programs of a process with more share one pool, so
 * they must have the same number.  Null on failure. */
EDGEPFL_PUBLIC edgepfl_program *edgepfl_load(const void *data, size_t size, uint32_t threads);

/* The number of inputs or outputs; -1 on failure. */
EDGEPFL_PUBLIC int64_t edgepfl_ports(const edgepfl_program *program, int32_t side);

/* Describes one of them.  Returns 0, or -1. */
EDGEPFL_PUBLIC int32_t edgepfl_describe(const edgepfl_program *program, int32_t side, size_t index, edgepfl_port *port);

/* Runs the method once.  Inputs are left unchanged and must not overlap outputs; `*_bytes` must be what
 * edgepfl_describe() says of each port, `*_count` what edgepfl_ports() says.  Returns 0, or -1. */
EDGEPFL_PUBLIC int32_t edgepfl_run(edgepfl_program *program, const void *const *inputs, const uint64_t *input_bytes,
                                   size_t input_count, void *const *outputs, const uint64_t *output_bytes,
                                   size_t output_count);

/* Frees a program; null is fine. */
EDGEPFL_PUBLIC void edgepfl_destroy(edgepfl_program *program);

#ifdef __cplusplus
}
#endif

#endif
