/* isa_portable.c: plain C for any machine; the compiler's baseline decides what it becomes (on x86 SSE2). */
#include "isa.h"

#define RF_NAME(x) x##_portable
#define RF_TARGET
#define RF_SCORE_ROWS 1
#define RF_SCORE_SUMS 2 /* sums of 16 floats that fit in the registers */
#define RF_VALUE_ROWS 1
#define RF_VALUE_SUMS 2
#include "table.h"
