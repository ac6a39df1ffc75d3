/* ramforge_merge.h: what byte-pair and SentencePiece tokenizers share: a table from strings to ids, and the loop that
 * merges the best pair of neighbours until none is left.
 *
 * Every distribution that needs it carries an identical copy. No allocation, no recursion, no global state: the caller
 * brings all arrays, so that memory is counted where it is made. Time is O(n log n) in the number of symbols.
 */
#ifndef RAMFORGE_MERGE_H
#define RAMFORGE_MERGE_H

#include <stdint.h>
#include <string.h>

/* ---- strings ------------------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *blob;    /* all strings, one behind the other */
    const int64_t *offsets; /* (n + 1): string i is blob[offsets[i]] up to blob[offsets[i + 1]] */
    int32_t *slots;         /* (mask + 1), a power of two above n: an id or -1; open addressing */
    int64_t mask;
} rf_strings;

/* FNV-1a, and a last mix because tables use the low bits. */
static inline uint64_t rf_hash(const uint8_t *text, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ text[i]) * 0x100000001b3u;
    return h ^ (h >> 29);
}

/* The slot that holds this string, or the free slot where it belongs. */
static inline int64_t rf_slot(const rf_strings *s, const uint8_t *text, int64_t n)
{
    int64_t slot = (int64_t)(rf_hash(text, n) & (uint64_t)s->mask);
    for (; s->slots[slot] >= 0; slot = (slot + 1) & s->mask) {
        int64_t at = s->offsets[s->slots[slot]];
        if (s->offsets[s->slots[slot] + 1] - at == n && memcmp(s->blob + at, text, (size_t)n) == 0)
            break;
    }
    return slot;
}

/* The id of a string, or -1. */
static inline int32_t rf_find(const rf_strings *s, const uint8_t *text, int64_t n)
{
    return s->slots[rf_slot(s, text, n)];
}

/* Fill the slots (all -1 before) with the ids of those n strings that are wanted; of equal strings the first counts. */
static inline void rf_index(const rf_strings *s, const uint8_t *wanted, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t length = s->offsets[i + 1] - s->offsets[i];
        if (!wanted[i] || length == 0)
            continue;
        int64_t slot = rf_slot(s, s->blob + s->offsets[i], length);
        if (s->slots[slot] < 0)
            s->slots[slot] = (int32_t)i;
    }
}

/* ---- merging ------------------------------------------------------------------------------------------------ */

/* A chain of symbols; all arrays (capacity) but the heap. The pair of a symbol is the symbol and its right neighbour.
 *
 * The heap (4-ary: a cache line holds two sets of children) has an entry key << 32 | symbol for every pair that can be
 * merged, and stale ones, which are passed over when they come up: those whose key the symbol no longer has. It starts
 * with one entry a pair, and a merge takes one out and puts at most two in, so twice the symbols is room enough. */
typedef struct {
    uint64_t *heap; /* (2 * capacity) */
    int32_t *id;    /* token of the symbol, or -1 */
    int32_t *prev;  /* neighbours, or -1 */
    int32_t *next;
    int32_t *key;   /* of the pair: the smallest is merged first, the leftmost of equal ones; -1 if it cannot be */
    int32_t *made;  /* token that the pair becomes */
    int64_t size;   /* of the heap */
} rf_chain;

#define RF_CHAIN_ARRAYS 9 /* as many int32 are needed for each symbol of the capacity */

/* Key of the pair (left, right) and the token it becomes, or -1 if it cannot be merged. */
typedef int32_t (*rf_pair_fn)(const void *vocabulary, const rf_chain *c, int32_t left, int32_t right, int32_t *made);

/* A chain in RF_CHAIN_ARRAYS * capacity int32, which are aligned for uint64. */
static inline rf_chain rf_chain_at(int32_t *work, int64_t capacity)
{
    int32_t *arrays = work + 4 * capacity;
    rf_chain c = {(uint64_t *)(void *)work, arrays,
                  arrays + capacity,        arrays + 2 * capacity,
                  arrays + 3 * capacity,    arrays + 4 * capacity,
                  0};
    return c;
}

static inline void rf_push(rf_chain *c, uint64_t entry)
{
    int64_t place = c->size++;
    while (place > 0 && entry < c->heap[(place - 1) / 4]) {
        c->heap[place] = c->heap[(place - 1) / 4];
        place = (place - 1) / 4;
    }
    c->heap[place] = entry;
}

static inline uint64_t rf_pop(rf_chain *c)
{
    uint64_t best = c->heap[0], entry = c->heap[--c->size];
    int64_t place = 0;
    for (int64_t child = 1; child < c->size; child = 4 * place + 1) {
        int64_t end = child + 4 < c->size ? child + 4 : c->size;
        for (int64_t other = child + 1; other < end; other++)
            if (c->heap[other] < c->heap[child])
                child = other;
        if (c->heap[child] >= entry)
            break;
        c->heap[place] = c->heap[child];
        place = child;
    }
    c->heap[place] = entry;
    return best;
}

/* Look at the pair of this symbol again. */
static inline void rf_refresh(rf_chain *c, int32_t symbol, rf_pair_fn pair, const void *vocabulary)
{
    c->key[symbol] = -1;
    if (c->next[symbol] >= 0)
        c->key[symbol] = pair(vocabulary, c, symbol, c->next[symbol], &c->made[symbol]);
    if (c->key[symbol] >= 0)
        rf_push(c, (uint64_t)c->key[symbol] << 32 | (uint32_t)symbol);
}

/* Merge n symbols, whose ids are set, until no pair can be merged. Those left are found from 0 along next. */
static inline void rf_merge(rf_chain *c, int32_t n, rf_pair_fn pair, const void *vocabulary)
{
    c->size = 0;
    for (int32_t i = 0; i < n; i++) {
        c->prev[i] = i - 1;
        c->next[i] = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i < n; i++)
        rf_refresh(c, i, pair, vocabulary);
    while (c->size > 0) {
        uint64_t entry = rf_pop(c);
        int32_t left = (int32_t)(entry & 0xffffffffu), right = c->next[left];
        if (c->key[left] != (int32_t)(entry >> 32))
            continue;
        c->id[left] = c->made[left];
        c->key[right] = -1;
        c->next[left] = c->next[right];
        if (c->next[left] >= 0)
            c->prev[c->next[left]] = left;
        rf_refresh(c, left, pair, vocabulary);
        if (c->prev[left] >= 0)
            rf_refresh(c, c->prev[left], pair, vocabulary);
    }
}

#endif
