/* isa_avx512.c: AVX-512 with F, BW, DQ and VL. */
#include "isa.h"

#if defined(__x86_64__) || defined(__i386__)
#define RF_NAME(x) x##_avx512
#define RF_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))
#define RF_HAVE_F16C
#define RF_HAVE_AVX512
#define RF_QK_KEYS 16
#define RF_PV_LANES 4
#include "table.h"
#endif
