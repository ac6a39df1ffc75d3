/* isa_neon.c: the NEON that every AArch64 processor has, with conversions of halves and twice the registers of x86. */
#include "isa.h"

#ifdef __aarch64__
#define RF_NAME(x) x##_neon
#define RF_TARGET
#define RF_HAVE_NEON
#define RF_SCORE_ROWS 2
#define RF_SCORE_SUMS 4
#define RF_VALUE_ROWS 2
#define RF_VALUE_SUMS 4
#include "table.h"
#endif
