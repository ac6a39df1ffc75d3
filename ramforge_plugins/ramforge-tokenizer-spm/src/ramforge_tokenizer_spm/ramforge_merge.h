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

/* A chain of n symbols; all arrays (n). The pair of a symbol is the symbol and its right neighbour. */
typedef struct {
    int32_t *id;    /* token of the symbol, or -1 */
    int32_t *prev;  /* neighbours, or -1 */
    int32_t *next;
    int32_t *key;   /* of the pair: the smallest is merged first, the leftmost of equal ones */
    int32_t *made;  /* token that the pair becomes */
    int32_t *heap;  /* symbols whose pair can be merged, best first */
    int32_t *place; /* of a symbol in the heap, or -1 */
    int32_t size;   /* of the heap */
} rf_chain;

#define RF_CHAIN_ARRAYS 7

/* Key of the pair (left, right) and the token it becomes, or -1 if it cannot be merged. */
typedef int32_t (*rf_pair_fn)(const void *vocabulary, const rf_chain *c, int32_t left, int32_t right, int32_t *made);

static inline rf_chain rf_chain_at(int32_t *work, int64_t capacity)
{
    rf_chain c = {work, work + capacity, work + 2 * capacity, work + 3 * capacity, work + 4 * capacity,
                  work + 5 * capacity, work + 6 * capacity, 0};
    return c;
}

static inline int rf_before(const rf_chain *c, int32_t a, int32_t b)
{
    return c->key[a] < c->key[b] || (c->key[a] == c->key[b] && a < b);
}

static inline void rf_put(rf_chain *c, int32_t place, int32_t symbol)
{
    c->heap[place] = symbol;
    c->place[symbol] = place;
}

/* Move the symbol at this place of the heap to where its key belongs. */
static inline void rf_settle(rf_chain *c, int32_t place)
{
    int32_t symbol = c->heap[place];
    while (place > 0 && rf_before(c, symbol, c->heap[(place - 1) / 2])) {
        rf_put(c, place, c->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (int64_t child = 2 * (int64_t)place + 1; child < c->size; child = 2 * (int64_t)place + 1) {
        if (child + 1 < c->size && rf_before(c, c->heap[child + 1], c->heap[child]))
            child++;
        if (!rf_before(c, c->heap[child], symbol))
            break;
        rf_put(c, place, c->heap[child]);
        place = (int32_t)child;
    }
    rf_put(c, place, symbol);
}

static inline void rf_drop(rf_chain *c, int32_t symbol)
{
    int32_t place = c->place[symbol];
    if (place < 0)
        return;
    c->place[symbol] = -1;
    int32_t last = c->heap[--c->size];
    if (last == symbol)
        return;
    rf_put(c, place, last);
    rf_settle(c, place);
}

/* Look at the pair of this symbol again. */
static inline void rf_refresh(rf_chain *c, int32_t symbol, rf_pair_fn pair, const void *vocabulary)
{
    int32_t key = -1;
    if (c->next[symbol] >= 0)
        key = pair(vocabulary, c, symbol, c->next[symbol], &c->made[symbol]);
    if (key < 0) {
        rf_drop(c, symbol);
        return;
    }
    c->key[symbol] = key;
    if (c->place[symbol] < 0)
        rf_put(c, c->size++, symbol);
    rf_settle(c, c->place[symbol]);
}

/* Merge n symbols, whose ids are set, until no pair can be merged. Those left are found from 0 along next. */
static inline void rf_merge(rf_chain *c, int32_t n, rf_pair_fn pair, const void *vocabulary)
{
    c->size = 0;
    for (int32_t i = 0; i < n; i++) {
        c->prev[i] = i - 1;
        c->next[i] = i + 1 < n ? i + 1 : -1;
        c->place[i] = -1;
    }
    for (int32_t i = 0; i < n; i++)
        rf_refresh(c, i, pair, vocabulary);
    while (c->size > 0) {
        int32_t left = c->heap[0], right = c->next[left];
        c->id[left] = c->made[left];
        rf_drop(c, right);
        c->next[left] = c->next[right];
        if (c->next[left] >= 0)
            c->prev[c->next[left]] = left;
        rf_refresh(c, left, pair, vocabulary);
        if (c->prev[left] >= 0)
            rf_refresh(c, c->prev[left], pair, vocabulary);
    }
}

#endif
