/* isa.h: one table of functions per instruction set, all compiled from the same text.
 *
 * A file isa_<name>.c sets RF_ISA and RF_TARGET and includes vec.h, math.h, ops.h, attention.h and pack.h. The text
 * is written for 16 float lanes as a gcc vector; each target splits it into what it has. Since no compiler may fuse or
 * reorder (-ffp-contract=off, no fast math), and v_fma rounds once everywhere, all instruction sets give the same
 * bits. */
#ifndef RAMFORGE_CPU_ISA_H
#define RAMFORGE_CPU_ISA_H
#include "api.h"
#include "ramforge_kernel.h"

/* Do tasks [first, last) of a unit. A task is a row of `out`, for attention a (token, heads) pair. */
typedef void (*rf_task_fn)(const rf_run *run, const rf_unit *unit, int64_t first, int64_t last, float *scratch);

/* Attention of `heads` query heads of key/value head `group`, from head `head` on, of tokens [first, last), at most
 * RF_ATTEND_ROWS rows. range: over RF_ALL_RANGES of keys; or over that one, which leaves parts in run->parts; or
 * RF_MERGE_RANGES, which makes the output of all these parts. */
typedef void (*rf_attend_fn)(const rf_run *run, const rf_unit *unit, int64_t first, int64_t last, int64_t group,
                             int64_t head, int64_t heads, int64_t range, float *scratch);
enum { RF_ALL_RANGES = -1, RF_MERGE_RANGES = -2 };

/* Rows [first, first + n_rows) of what each expert of RF_MOE_UP or RF_MOE_DOWN gives, for all tokens. */
typedef int (*rf_moe_fn)(const rf_run *run, const rf_unit *unit, int64_t first, int64_t n_rows, float *scratch);

typedef struct {
    rf_task_fn rows[RF_KINDS]; /* NULL for embed, matmul, attend and experts */
    rf_attend_fn attend;
    rf_moe_fn moe_up, moe_down;
    ramforge_matmul_fn matmul_f32;
    void (*math)(int function, const float *x, int64_t n, float *out);
} rf_table;

extern const rf_table rf_table_portable, rf_table_avx2, rf_table_avx512, rf_table_neon;

/* The table of an instruction set by its number in rf_isa_name; NULL if it is not here. */
const rf_table *rf_isa_table(int isa);

/* Rows, that is query heads times tokens, that one call of rf_attend_fn may have. */
#define RF_ATTEND_ROWS 32
/* Keys of an attention tile and of a range; both start at multiples. Whole blocks of 16 keys, whole tiles. A KV chunk
 * is whole tiles. */
#define RF_TILE_KEYS 64
#define RF_RANGE_KEYS 512
/* Tokens of a pass whose ranges may be computed by several threads. */
#define RF_SPLIT_TOKENS 4

/* Tokens of an expert that are multiplied together, and most rows of a task. */
#define RF_MOE_TOKENS 64
#define RF_MOE_ROWS 256

#define RF_ROUND16(n) (((n) + 15) / 16 * 16)

static inline float *rf_row(const rf_run *run, int32_t value, int64_t row)
{
    const rf_value *v = &run->values[value];
    return (v->slot < 0 ? run->logits : run->workspace + v->slot * run->n_tokens) + row * v->stride;
}

/* Floats of a part, see attention.h. */
static inline int64_t rf_part_floats(int64_t value_width) { return RF_ROUND16(value_width) + 16; }

/* Where the part that a range of keys gives to a query head of a token is handed over, at most RF_SPLIT_TOKENS. */
static inline float *rf_part(const rf_run *run, const rf_unit *u, int64_t t, int64_t head, int64_t range)
{
    int64_t ranges = run->part_ranges;
    return run->parts + ((t * u->heads + head) * ranges + range) * rf_part_floats(u->value_width);
}

/* The token that a row of a unit stands for. */
static inline int64_t rf_token(const rf_run *run, const rf_unit *unit, int64_t row)
{
    return unit->wanted ? run->wanted[row] : row;
}
#endif
