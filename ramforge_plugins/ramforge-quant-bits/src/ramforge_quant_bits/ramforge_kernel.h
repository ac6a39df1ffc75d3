/* ramforge_kernel.h: the C contract between quant formats and compute backends.
 *
 * Every distribution that builds kernels carries an identical copy. It holds signatures and activation packings
 * only; no code that a format must use. Version: RAMFORGE_KERNEL_ABI.
 *
 * Rules for every function: no allocation, no output, no global state; safe from any thread; returns 0, or a
 * negative number for arguments that break the contract. Pointers need no more alignment than stated here.
 */
#ifndef RAMFORGE_KERNEL_H
#define RAMFORGE_KERNEL_H

#include <stdint.h>

#define RAMFORGE_KERNEL_ABI 1

/* Decode n_blocks whole blocks at src (any alignment) to n_blocks * block_values floats at dst. */
typedef int (*ramforge_decode_fn)(const uint8_t *src, int64_t n_blocks, float *dst);

/* out[a * out_stride + r] = dot(row r of the weights, activation a), for r < n_rows and a < n_acts.
 *   weights     first of n_rows packed rows, row_bytes apart (any alignment); nothing past the last row is read
 *   n_cols      values in a row, whole blocks
 *   acts        n_acts packed activations, act_bytes apart, in the packing the format asks for, 4-byte aligned
 * Batch-invariant: one result never depends on n_rows, n_acts or the instruction set. The rule that gives this:
 * exact int32 sums inside a block, then one float32 accumulator for each (row, activation), blocks in order, each
 * product and each sum rounded by itself (no fused multiply-add). Formats multiplied in float32 keep 16 partial
 * sums that begin at +0, value k going to sum k % 16 by a fused multiply-add, s = fma(w, x, s) rounded once, reduced
 * as (((s0+s8)+(s4+s12))+((s2+s10)+(s6+s14))) + (the same of odd ones). */
typedef int (*ramforge_matmul_fn)(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,
                                  const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out,
                                  int64_t out_stride);

/* Packing f32: n_cols floats. */

/* Packing q8_32: n_cols / 32 of these. d = max|x| / 127; q = x / d rounded to nearest even, in [-127, 127]. */
typedef struct {
    int8_t q[32];
    float d;
    float s;     /* d * (float)sum */
    int32_t sum; /* of q[0..31] */
} ramforge_q8_32;

/* Packing q8_256: n_cols / 256 of these, same rounding. */
typedef struct {
    int8_t q[256];
    int16_t sum[16]; /* sum[j] = q[16j] + ... + q[16j+15] */
    float d;
} ramforge_q8_256;

#endif
