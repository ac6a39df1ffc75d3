/* api.h: what Python sees of the C part. cffi reads it without the lines that begin with '#'.
 *
 * Letters: T tokens of the batch, W wanted tokens, H query heads, G key/value heads, K and V widths of a key head and
 * of a value head. A value is float32 (rows, width), rows being T or W. */
#ifndef RAMFORGE_CPU_API_H
#define RAMFORGE_CPU_API_H
#include <stdint.h>

/* What a unit does. Units are the ops of the graph, with packing, gathering and storing of keys as units of their own. */
enum rf_kind {
    RF_EMBED,       /* out (T, n_cols) = decoded rows of weight */
    RF_GATHER,      /* out (W, width) = the wanted rows of a (T, width) */
    RF_PACK_Q8_32,  /* out = a, packed as in ramforge_kernel.h */
    RF_PACK_Q8_256,
    RF_MATMUL,      /* out (rows, n_rows) = a @ weight.T + bias; a is packed */
    RF_NORM_RMS,
    RF_NORM_LAYER,
    RF_HEADS,       /* as RF_MATMUL, each of ``heads`` heads of a by n_rows rows of its own */
    RF_SLICE,       /* from column ``start`` of each of ``heads`` heads */
    RF_JOIN,        /* each of ``heads`` heads of a with that of b behind it */
    RF_ADD,
    RF_MUL,
    RF_SCALE,
    RF_SOFTCAP,
    RF_ROPE_ADJACENT,
    RF_ROPE_HALF,
    RF_STORE_KV,    /* a (T, G*K) and b (T, G*V) into the KV cache */
    RF_ATTEND,      /* out (T, H*V) from a (T, H*K) and the KV cache */
    RF_GLU_SILU,
    RF_GLU_GELU,
    RF_GATE,        /* out = a * sigmoid(b); b is (rows, 1) or as wide as a */
    RF_ROUTE,       /* out (rows, 2k) = numbers and weights of k experts, from logits a (rows, E) */
    RF_MOE_UP,      /* out (rows, k * F) = act(gate, up) of the chosen experts; a = routes, b and c = packed x */
    RF_MOE_DOWN,    /* out (rows, D) = sum of the chosen experts; a = routes, b = packed (rows, k * F) */
    RF_KINDS
};

/* What a row of the KV cache is: numbers, or blocks of a half d and 32 signed bytes q, value = d * q. */
enum rf_kv_type { RF_KV_F32, RF_KV_F16, RF_KV_Q8_0 };

/* Where a value lies. Row i of it starts at workspace + slot * T + i * stride. */
typedef struct {
    int64_t slot;   /* floats per token; -1: the value is the logits array */
    int64_t stride; /* floats from row to row */
    int64_t width;  /* floats that count */
} rf_value;

/* How RF_MOE_UP joins gate and up. */
enum rf_act { RF_ACT_SILU, RF_ACT_GELU, RF_ACT_SWIGLU_OAI };

/* One matrix of each expert, all of the same shape. */
typedef struct {
    /* Of the weight's format, see ramforge_kernel.h. NULL: float32. */
    int (*matmul)(const uint8_t *, int64_t, int64_t, int64_t, const uint8_t *, int64_t, int64_t, float *, int64_t);
    const uint8_t *const *weights; /* by expert: packed rows; NULL: not bound */
    const float *bias;             /* (E, n_rows), or NULL */
    int64_t row_bytes, n_rows, n_cols;
    int64_t act_bytes;             /* of one packed activation */
} rf_experts;

typedef struct {
    int32_t kind;
    int32_t sync;      /* 1: touches what a unit since the last unit with sync has touched */
    int32_t ends_step; /* 1: with this unit a step of the program is done */
    int32_t wanted;    /* 1: rows are the wanted tokens */
    int32_t out, a, b, c; /* indices of values, -1 for none */

    /* Of the weight's format, see ramforge_kernel.h. NULL: the weight is float32 and our own code does it. */
    int (*decode)(const uint8_t *, int64_t, float *);
    int (*matmul)(const uint8_t *, int64_t, int64_t, int64_t, const uint8_t *, int64_t, int64_t, float *, int64_t);
    const uint8_t *weight; /* packed rows */
    int64_t row_bytes, n_rows, n_cols, row_blocks;
    int64_t act_bytes;     /* of one packed activation */
    const float *vector;   /* norm weight, rope frequencies, sinks */
    const float *bias;     /* of matmul and norm */
    int64_t vector_width;  /* norm: values of a run. rope: pairs */

    float number;          /* eps, factor, cap, magnitude or scale of scores */
    float softcap;         /* attention: 0 for none */
    int64_t start;         /* first column: slice reads from it, matmul writes from it */
    int64_t head_width;    /* rope */
    int64_t heads, kv_heads, key_width, value_width, window; /* attention; window 0 for none */
    int64_t key_offset, value_offset;                        /* bytes inside a KV chunk */

    int64_t n_experts, chosen;          /* route and moe: E and k */
    int32_t act, sigmoid, normalise;    /* enum rf_act; route: how scores come about, vector being their bias */
    const rf_experts *experts, *second; /* moe up: gate and up. moe down: down */
} rf_unit;

/* All that one call needs. The workspace keeps its values from call to call, so that a pass may be cut in pieces. */
typedef struct {
    const rf_unit *units;
    const rf_value *values;
    int64_t first, last; /* units [first, last) */

    float *workspace;    /* 64-byte aligned */
    float *scratch;      /* 64-byte aligned, scratch_floats for each thread */
    int64_t scratch_floats;
    float *parts;        /* 64-byte aligned, of attention whose keys are split among threads */
    int64_t part_ranges; /* ranges of keys of the longest context */
    int32_t *parts_done; /* by task of a whole range, zeros between units */
    float *logits;       /* (W, vocab) */

    int64_t n_tokens, n_wanted;
    const int32_t *tokens, *positions, *sequences; /* (T) */
    const int64_t *wanted;                         /* (W) indices of tokens */
    uint8_t *const *chunks;       /* KV chunks of all sequences */
    const int64_t *first_chunk;   /* by sequence: index in chunks */
    int64_t chunk_positions;
    int32_t kv_type;              /* enum rf_kv_type */

    const int32_t *hidden;   /* of moe up: these experts, n_hidden of them; NULL: all */
    int64_t n_hidden;
    int64_t first_summed, last_summed; /* of moe down: experts [first, last); expert 0 begins the sum */

    int32_t to_be_continued; /* 1: another run comes as soon as experts have been read */
    int32_t *flags;               /* [0] stop, [1] steps done */
} rf_run;

typedef struct rf_pool rf_pool;

/* Results of rf_pool_run; a number below zero is -1 - the index of a unit whose kernel refused its arguments. */
enum rf_result { RF_DONE, RF_STOPPED };

/* A pool of n_threads threads, the caller being one of them; isa is one of rf_isa_name. NULL: no memory, no threads. */
rf_pool *rf_pool_new(int n_threads, int isa);
void rf_pool_free(rf_pool *pool);
int rf_pool_run(rf_pool *pool, rf_run *run);

/* Instruction sets that this build knows, the widest first: name, and whether this machine has it. NULL past the end. */
const char *rf_isa_name(int isa);
int rf_isa_here(int isa);

/* Floats of scratch that one thread needs for attention. */
int64_t rf_attend_scratch(int64_t key_width, int64_t value_width);

/* Ranges of keys in `context` positions, and floats and counters that parts of attention over them need. */
int64_t rf_attend_ranges(int64_t context);
int64_t rf_attend_parts(int64_t context, int64_t heads, int64_t value_width);
int64_t rf_attend_counters(int64_t heads);

/* Floats of scratch that one thread needs for experts whose packed activations have so many bytes. */
int64_t rf_moe_scratch(int64_t act_bytes);

/* One elementwise function over n floats, for tests: 0 exp, 1 tanh, 2 sin, 3 cos (of x as position * 1). */
int rf_test_math(int isa, int function, const float *x, int64_t n, float *out);
#endif
