/* isa_avx512.c: AVX-512 with F, BW, DQ and VL. */
#include "isa.h"

#if defined(__x86_64__) || defined(__i386__)
#define RF_NAME(x) x##_avx512
#define RF_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")))
#define RF_HAVE_F16C
#define RF_HAVE_AVX512
#define RF_SCORE_ROWS 4
#define RF_SCORE_SUMS 16
#define RF_VALUE_ROWS 4
#define RF_VALUE_SUMS 16
#include "table.h"
#endif
