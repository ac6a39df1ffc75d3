/* bpe.h: byte-pair encoding over a GGUF vocabulary. See bpe.c. */
#ifndef RAMFORGE_BPE_H
#define RAMFORGE_BPE_H

#include "ramforge_merge.h"

typedef struct {
    rf_strings strings;   /* tokens as plain bytes */
    const int32_t *left;  /* (n_merges): the tokens of a pair, and what it becomes; the index is its rank */
    const int32_t *right;
    const int32_t *made;
    int32_t *pair_slots;  /* (pair_mask + 1): rank or -1, by (left, right) */
    int64_t pair_mask;
    int64_t longest;      /* bytes of the longest token */
    int32_t whole_words;  /* a word that is a token is taken whole, whatever the merges say */
    int32_t bytes[256];   /* the token of each byte, or -1 */
} rf_bpe;

/* Turn tokens from GPT-2's printable alphabet to plain bytes.
 *   blob, offsets        n strings in UTF-8, as the file holds them
 *   wanted               in: 1 for those to be turned; out: 0 where a character is not of that alphabet
 *   out, out_offsets     as many bytes and offsets; strings that are not turned are copied */
void rf_bpe_decode(const uint8_t *blob, const int64_t *offsets, int64_t n, uint8_t *wanted, uint8_t *out,
                   int64_t *out_offsets);

/* Fill b->strings.slots (all -1) with the wanted tokens, and b->bytes. */
void rf_bpe_index(rf_bpe *b, const uint8_t *wanted, int64_t n);

/* The token that is exactly these bytes, or -1. */
int32_t rf_bpe_find(const rf_bpe *b, const uint8_t *text, int64_t n);

/* Read merges ("left right", printable alphabet) into left, right, made (n each) and b->pair_slots (all -1).
 *   scratch    room for the longest merge
 * A merge of strings that are no tokens can never happen and is left out. Returns -1, or the index of the first
 * merge that has no blank between two parts. */
int64_t rf_bpe_merges(rf_bpe *b, const uint8_t *blob, const int64_t *offsets, int64_t n, uint8_t *scratch,
                      int32_t *left, int32_t *right, int32_t *made);

/* Encode n bytes of text whose words rf_split has marked.
 *   work    RF_CHAIN_ARRAYS * capacity, capacity at least the bytes of the longest word
 *   out     room for n tokens
 * Returns the number of tokens, or -1 if a word is longer than the capacity. */
int64_t rf_bpe_encode(const rf_bpe *b, const uint8_t *text, int64_t n, const uint8_t *starts, int32_t *work,
                      int64_t capacity, int32_t *out);

#endif
