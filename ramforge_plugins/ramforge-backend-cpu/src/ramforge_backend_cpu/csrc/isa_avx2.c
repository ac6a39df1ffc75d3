/* isa_avx2.c: AVX2 with F16C and FMA. */
#include "isa.h"

#if defined(__x86_64__) || defined(__i386__)
#define RF_NAME(x) x##_avx2
#define RF_TARGET __attribute__((target("avx2,f16c,fma")))
#define RF_HAVE_F16C
#define RF_SCORE_ROWS 2
#define RF_SCORE_SUMS 4
#define RF_VALUE_ROWS 2
#define RF_VALUE_SUMS 4
#include "table.h"
#endif
