/* table.h: the functions of one instruction set, gathered; the last thing that isa_<name>.c includes. */
#include "vec.h"
#include "maths.h"
#include "ops.h"
#include "pack.h"
#include "attention.h"
#include "moe.h"

const rf_table RF_NAME(rf_table) = {
    .rows =
        {
            [RF_GATHER] = RF_NAME(gather),
            [RF_PACK_Q8_32] = RF_NAME(pack_q8_32),
            [RF_PACK_Q8_256] = RF_NAME(pack_q8_256),
            [RF_NORM_RMS] = RF_NAME(norm),
            [RF_NORM_LAYER] = RF_NAME(norm),
            [RF_SLICE] = RF_NAME(slice),
            [RF_JOIN] = RF_NAME(join),
            [RF_ADD] = RF_NAME(add),
            [RF_MUL] = RF_NAME(mul),
            [RF_SCALE] = RF_NAME(scale),
            [RF_SOFTCAP] = RF_NAME(softcap),
            [RF_ROPE_ADJACENT] = RF_NAME(rope),
            [RF_ROPE_HALF] = RF_NAME(rope),
            [RF_STORE_KV] = RF_NAME(store_kv),
            [RF_GLU_SILU] = RF_NAME(glu_silu),
            [RF_GLU_GELU] = RF_NAME(glu_gelu),
            [RF_GATE] = RF_NAME(gate),
            [RF_ROUTE] = RF_NAME(route),
        },
    .attend = RF_NAME(attend),
    .moe_up = RF_NAME(moe_up),
    .moe_down = RF_NAME(moe_down),
    .matmul_f32 = RF_NAME(matmul_f32),
    .math = RF_NAME(math),
};
