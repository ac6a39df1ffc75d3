/* backend.c: the row-wise units and attention of ramforge-backend-cpu over given numbers.
 *
 *     backend ISA INPUT OUTPUT
 *
 * INPUT is cross_floats() floats. Here it is built as a library, over the installed backend; for AArch64 as a program. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isa.h"

enum { TOKENS = 40, WIDTH = 512, HEADS = 4, KV_HEADS = 2, KEY = 128, POSITIONS = 576, SCRATCH = 1 << 16 };

static const int kinds[] = {RF_ADD,       RF_MUL,        RF_SCALE,         RF_SOFTCAP,   RF_GLU_SILU,    RF_GLU_GELU,
                            RF_NORM_RMS,  RF_NORM_LAYER, RF_ROPE_ADJACENT, RF_ROPE_HALF, RF_PACK_Q8_32, RF_PACK_Q8_256};
enum { SHARED = HEADS / KV_HEADS, TOGETHER = RF_ATTEND_ROWS / SHARED };
enum { KINDS = sizeof kinds / sizeof kinds[0], RESULTS = KINDS + 4 + 1 + 3, MATRIX = TOKENS * WIDTH };

int64_t cross_floats(void) { return 2 * MATRIX; }
int64_t cross_results(void) { return RESULTS * MATRIX; }

/* RESULTS matrices; what a kind does not fill is zero. Returns 0, or -1 if the instruction set is not here. */
int cross_run(int isa, const float *in, float *out)
{
    static float memory[3 * MATRIX], scratch[SCRATCH] __attribute__((aligned(64)));
    static uint8_t chunk[2 * KV_HEADS * POSITIONS * KEY * 4] __attribute__((aligned(64)));
    static int32_t positions[TOKENS], sequences[TOKENS];
    static const int64_t first_chunk[1] = {0};
    uint8_t *chunks[1] = {chunk};
    const rf_table *table = rf_isa_table(isa);
    rf_value values[4] = {{0, WIDTH, WIDTH},
                          {WIDTH, WIDTH, WIDTH},
                          {2 * WIDTH, WIDTH, WIDTH},
                          {WIDTH, WIDTH, KV_HEADS * KEY}};
    rf_run run = {.values = values, .workspace = memory, .n_tokens = TOKENS, .positions = positions,
                  .sequences = sequences, .chunks = chunks, .first_chunk = first_chunk, .chunk_positions = POSITIONS};
    if (!table)
        return -1;
    memcpy(memory, in, 2 * MATRIX * sizeof(float));
    memset(out, 0, RESULTS * MATRIX * sizeof(float));
    for (int t = 0; t < TOKENS; t++)
        positions[t] = t;
    rf_unit u = {.out = 2, .a = 0, .b = 1, .vector = in + MATRIX, .number = 1.7f, .head_width = KEY,
                 .heads = HEADS, .kv_heads = KV_HEADS, .key_width = KEY, .value_width = KEY};
    u.value_offset = KV_HEADS * POSITIONS * KEY * 4;
    for (int i = 0; i < KINDS; i++, out += MATRIX) {
        const int rope = kinds[i] == RF_ROPE_ADJACENT || kinds[i] == RF_ROPE_HALF;
        u.kind = kinds[i];
        u.vector_width = rope ? KEY / 2 - 4 : WIDTH;
        memset(memory + 2 * MATRIX, 0, MATRIX * sizeof(float));
        table->rows[kinds[i]](&run, &u, 0, TOKENS, scratch);
        memcpy(out, memory + 2 * MATRIX, MATRIX * sizeof(float));
    }
    for (int function = 0; function < 4; function++, out += MATRIX)
        table->math(function, in, MATRIX, out);
    table->matmul_f32((const uint8_t *)in, WIDTH * 4, TOKENS, WIDTH, (const uint8_t *)(in + MATRIX), WIDTH * 4, TOKENS,
                      out, TOKENS);
    out += MATRIX;
    u.vector = NULL;
    u.number = 0.09f;
    u.a = 0, u.b = 3;
    for (int type = RF_KV_F32; type <= RF_KV_Q8_0; type++, out += MATRIX) {
        run.kv_type = type;
        memset(chunk, 0, sizeof chunk);
        for (int first = 0; first + TOKENS <= POSITIONS; first += TOKENS) { /* the last ones see two ranges of keys */
            for (int t = 0; t < TOKENS; t++)
                positions[t] = first + t;
            table->rows[RF_STORE_KV](&run, &u, 0, TOKENS, scratch);
        }
        for (int t = 0; t < TOKENS; t += TOGETHER)
            for (int group = 0; group < KV_HEADS; group++)
                table->attend(&run, &u, t, t + TOGETHER < TOKENS ? t + TOGETHER : TOKENS, group, group * SHARED, SHARED,
                              RF_ALL_RANGES, scratch);
        memcpy(out, memory + 2 * MATRIX, MATRIX * sizeof(float));
    }
    return 0;
}

int main(int argc, char **argv)
{
    float *in = malloc((size_t)cross_floats() * 4), *results = malloc((size_t)cross_results() * 4);
    FILE *from = argc == 4 ? fopen(argv[2], "rb") : NULL, *to = from ? fopen(argv[3], "wb") : NULL;
    if (!in || !results || !to || fread(in, 4, (size_t)cross_floats(), from) != (size_t)cross_floats())
        return 2;
    if (cross_run(atoi(argv[1]), in, results) != 0)
        return 1;
    fwrite(results, 4, (size_t)cross_results(), to);
    return fclose(to) ? 2 : 0;
}
