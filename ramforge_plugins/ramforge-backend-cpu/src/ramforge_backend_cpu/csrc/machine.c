/* machine.c: which instruction sets this build and this machine have. */
#include "isa.h"

#include <stddef.h>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__x86_64__) || defined(__i386__)
static const char *const names[] = {"avx512", "avx2", "portable"};

int rf_isa_here(int isa)
{
    __builtin_cpu_init();
    switch (isa) {
    case 0: /* with VNNI: what ramforge_core.quant means by avx512 */
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni") && rf_isa_here(1);
    case 1:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    default:
        return isa == 2;
    }
}

static const rf_table *const tables[] = {&rf_table_avx512, &rf_table_avx2, &rf_table_portable};
#elif defined(__aarch64__)
static const char *const names[] = {"neon", "portable"};

int rf_isa_here(int isa)
{
    switch (isa) {
    case 0: /* with dot products: what ramforge_core.quant means by neon */
#if defined(__ARM_FEATURE_DOTPROD)
        return 1;
#elif defined(__linux__)
        return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
        return 0;
#endif
    default:
        return isa == 1;
    }
}

static const rf_table *const tables[] = {&rf_table_neon, &rf_table_portable};
#else
static const char *const names[] = {"portable"};
static const rf_table *const tables[] = {&rf_table_portable};

int rf_isa_here(int isa) { return isa == 0; }
#endif

#define KNOWN ((int)(sizeof names / sizeof names[0]))

const char *rf_isa_name(int isa) { return isa >= 0 && isa < KNOWN ? names[isa] : NULL; }

const rf_table *rf_isa_table(int isa) { return isa >= 0 && isa < KNOWN && rf_isa_here(isa) ? tables[isa] : NULL; }

int64_t rf_attend_scratch(int64_t key_width, int64_t value_width)
{
    int64_t k = RF_ROUND16(key_width), v = RF_ROUND16(value_width);
    return 16 * (k > v ? k : v) + RF_ATTEND_ROWS * (k + RF_TILE_KEYS + 2 * rf_part_floats(value_width));
}

int64_t rf_attend_ranges(int64_t context) { return (context + RF_RANGE_KEYS - 1) / RF_RANGE_KEYS; }

int64_t rf_attend_parts(int64_t context, int64_t heads, int64_t value_width)
{
    return RF_SPLIT_TOKENS * heads * rf_attend_ranges(context) * rf_part_floats(value_width);
}

int64_t rf_attend_counters(int64_t heads) { return RF_SPLIT_TOKENS * heads; }

int64_t rf_moe_scratch(int64_t act_bytes)
{
    return RF_ROUND16(RF_MOE_TOKENS * act_bytes / 4) + 2 * RF_MOE_TOKENS * RF_MOE_ROWS;
}

int rf_test_math(int isa, int function, const float *x, int64_t n, float *out)
{
    const rf_table *table = rf_isa_table(isa);
    if (!table)
        return -1;
    table->math(function, x, n, out);
    return 0;
}
