/* spm.h: SentencePiece byte-pair encoding over a GGUF vocabulary. See spm.c. */
#ifndef RAMFORGE_SPM_H
#define RAMFORGE_SPM_H

#include "ramforge_merge.h"

#define RF_SPM_ARRAYS (RF_CHAIN_ARRAYS + 1)
#define RF_SPM_JOINS (256 * 256 / 8)

typedef struct {
    rf_strings strings;   /* tokens that text can become, blanks written as U+2581 */
    const int32_t *order; /* (n_tokens): place of the token's score, the best first; equal scores share a place */
    uint8_t *joins;       /* (RF_SPM_JOINS) bits: some token has byte a at the end of a character and b behind it */
    int64_t longest;      /* bytes of the longest token */
    int32_t bytes[256];   /* the token of each byte, or -1 */
    int32_t unknown;      /* for characters that bytes cannot say, or -1 */
} rf_spm;

/* Fill s->strings.slots (all -1) and s->joins (all 0) from the wanted tokens. */
void rf_spm_index(rf_spm *s, const uint8_t *wanted, int64_t n);

/* The token that is exactly these bytes, or -1. */
int32_t rf_spm_find(const rf_spm *s, const uint8_t *text, int64_t n);

/* Characters in the longest part of the text that has to be merged as one. */
int64_t rf_spm_longest_part(const rf_spm *s, const uint8_t *text, int64_t n);

/* Encode n bytes of valid UTF-8 whose blanks are escaped.
 *   work    RF_SPM_ARRAYS * capacity, capacity at least what rf_spm_longest_part says
 *   out     room for n tokens
 * Returns the number of tokens, or -1 if a part is longer than the capacity. */
int64_t rf_spm_encode(const rf_spm *s, const uint8_t *text, int64_t n, int32_t *work, int64_t capacity, int32_t *out);

#endif
