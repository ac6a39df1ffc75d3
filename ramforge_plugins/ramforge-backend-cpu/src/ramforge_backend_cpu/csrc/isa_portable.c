/* isa_portable.c: plain C for any machine; the compiler's baseline decides what it becomes (SSE2, NEON). */
#include "isa.h"

#define RF_NAME(x) x##_portable
#define RF_TARGET
#define RF_QK_KEYS 2  /* sums of 16 floats that fit in the registers */
#define RF_PV_LANES 2
#include "table.h"
