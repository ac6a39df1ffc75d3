/* isa.h: one table of functions per instruction set, all compiled from the same text.
 *
 * A file isa_<name>.c sets RF_ISA and RF_TARGET and includes vec.h, math.h, ops.h, attention.h and pack.h. The text
 * is written for 16 float lanes as a gcc vector; each target splits it into what it has. Since no target may fuse or
 * reorder (-ffp-contract=off, no fast math), every instruction set gives the same bits. */
#ifndef RAMFORGE_CPU_ISA_H
#define RAMFORGE_CPU_ISA_H
#include "api.h"
#include "ramforge_kernel.h"

/* Do tasks [first, last) of a unit. A task is a row of `out`, for attention a (token, heads) pair. */
typedef void (*rf_task_fn)(const rf_run *run, const rf_unit *unit, int64_t first, int64_t last, float *scratch);

/* Attention of `heads` query heads of key/value head `group`, from head `head` on, of token t. */
typedef void (*rf_attend_fn)(const rf_run *run, const rf_unit *unit, int64_t t, int64_t group, int64_t head,
                             int64_t heads, float *scratch);

/* Rows [first, first + n_rows) of what each expert of RF_MOE_UP or RF_MOE_DOWN gives, for all tokens. */
typedef int (*rf_moe_fn)(const rf_run *run, const rf_unit *unit, int64_t first, int64_t n_rows, float *scratch);

typedef struct {
    rf_task_fn rows[RF_KINDS]; /* NULL for embed, matmul, attend and experts */
    rf_attend_fn attend;
    rf_moe_fn moe_up, moe_down;
    ramforge_matmul_fn matmul_f32;
    void (*math)(int function, const float *x, int64_t n, float *out);
} rf_table;

extern const rf_table rf_table_portable, rf_table_avx2, rf_table_avx512;

/* The table of an instruction set by its number in rf_isa_name; NULL if it is not here. */
const rf_table *rf_isa_table(int isa);

/* Query heads that one call of rf_attend_fn may have. */
#define RF_ATTEND_HEADS 8
/* Keys of an attention tile; tiles start at multiples of it. A multiple of the 16 lanes. */
#define RF_TILE_KEYS 16

/* Tokens of an expert that are multiplied together, and most rows of a task. */
#define RF_MOE_TOKENS 64
#define RF_MOE_ROWS 256

#define RF_ROUND16(n) (((n) + 15) / 16 * 16)

static inline float *rf_row(const rf_run *run, int32_t value, int64_t row)
{
    const rf_value *v = &run->values[value];
    return (v->slot < 0 ? run->logits : run->workspace + v->slot * run->n_tokens) + row * v->stride;
}

/* The token that a row of a unit stands for. */
static inline int64_t rf_token(const rf_run *run, const rf_unit *unit, int64_t row)
{
    return unit->wanted ? run->wanted[row] : row;
}
#endif
