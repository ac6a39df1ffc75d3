/* kernels.c: runs kernels over cases that tests/cross/__init__.py writes to a file.
 *
 *     kernels INPUT OUTPUT
 *
 * A case is eight int64 (format, instruction set, n_rows, n_cols, row_bytes, n_acts, act_bytes, values of a block),
 * then the rows and the activations; its result is the decoded rows, then the products. Whoever reads or writes past
 * the end of any of these dies. formats.h is generated. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats.h"
#include "ramforge_kernel.h"

#define ARGUMENTS const uint8_t *, int64_t, int64_t, int64_t, const uint8_t *, int64_t, int64_t, float *, int64_t
#define DECLARE(name)                                      \
    int rf_##name##_decode(const uint8_t *, int64_t, float *); \
    int rf_##name##_matmul_portable(ARGUMENTS);            \
    int rf_##name##_matmul_neon(ARGUMENTS);
FORMATS(DECLARE)

#define ROW(name) {rf_##name##_decode, {rf_##name##_matmul_portable, rf_##name##_matmul_neon}},
static const struct {
    ramforge_decode_fn decode;
    ramforge_matmul_fn matmul[2];
} formats[] = {FORMATS(ROW)};

/* Memory whose end is that of a page, the next one being forbidden; the process gives it back. */
static void *room(int64_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = ((size_t)bytes + page - 1) / page * page;
    uint8_t *p = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + whole, page, PROT_NONE) != 0)
        exit(3);
    return p + whole - bytes;
}

int main(int argc, char **argv)
{
    FILE *in = argc == 3 ? fopen(argv[1], "rb") : NULL, *out = in ? fopen(argv[2], "wb") : NULL;
    int64_t c[8];
    if (!out)
        return 2;
    while (fread(c, sizeof c, 1, in) == 1) {
        const int64_t n_weights = c[2] * c[4], n_acts = c[5] * c[6];
        uint8_t *weights = room(n_weights), *acts = room(n_acts);
        float *decoded = room(c[2] * c[3] * 4), *products = room(c[5] * c[2] * 4);
        if (fread(weights, 1, (size_t)n_weights, in) != (size_t)n_weights ||
            fread(acts, 1, (size_t)n_acts, in) != (size_t)n_acts)
            return 2;
        if (formats[c[0]].decode(weights, c[2] * c[3] / c[7], decoded) != 0 ||
            formats[c[0]].matmul[c[1]](weights, c[4], c[2], c[3], acts, c[6], c[5], products, c[2]) != 0)
            return 1;
        fwrite(decoded, 4, (size_t)(c[2] * c[3]), out);
        fwrite(products, 4, (size_t)(c[5] * c[2]), out);
    }
    return fclose(out) ? 2 : 0;
}
