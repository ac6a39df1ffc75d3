/* bpe.c: byte-pair encoding over a GGUF vocabulary of model `gpt2`.
 *
 * In the file every byte of a token is written as one printable character (GPT-2's alphabet: '!'..'~', 0xA1..0xAC and
 * 0xAE..0xFF stand for themselves, the other 68 bytes for U+0100 and up in order). Tokens are turned to plain bytes
 * once, merges to (left token, right token) -> (rank, token); encoding then only handles numbers.
 *
 * A byte that has no token of its own gives none, as in llama.cpp.
 */
#include "bpe.h"

#define FIRST_PRINTABLE_STAND_IN 0x100
#define N_STAND_INS 68

static int stands_for_itself(int byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* The byte that each character below U+0144 stands for, or -1. */
static void alphabet(int16_t *byte_of)
{
    int stand_ins = 0;
    memset(byte_of, 0xff, (FIRST_PRINTABLE_STAND_IN + N_STAND_INS) * sizeof(*byte_of));
    for (int byte = 0; byte < 256; byte++)
        byte_of[stands_for_itself(byte) ? byte : FIRST_PRINTABLE_STAND_IN + stand_ins++] = (int16_t)byte;
}

/* Turn one string of the printable alphabet (n bytes of UTF-8) to plain bytes; their number, or -1 if it is none. */
static int64_t turn(const int16_t *byte_of, const uint8_t *text, int64_t n, uint8_t *out)
{
    int64_t length = 0;
    for (int64_t i = 0; i < n;) {
        int point = text[i++];
        if (point >= 0x80) {
            /* two bytes reach U+07FF; more are not needed */
            if (point < 0xc2 || point >= 0xe0 || i == n || (text[i] & 0xc0) != 0x80)
                return -1;
            point = (point & 0x1f) << 6 | (text[i++] & 0x3f);
        }
        if (point >= FIRST_PRINTABLE_STAND_IN + N_STAND_INS || byte_of[point] < 0)
            return -1;
        out[length++] = (uint8_t)byte_of[point];
    }
    return length;
}

void rf_bpe_decode(const uint8_t *blob, const int64_t *offsets, int64_t n, uint8_t *wanted, uint8_t *out,
                   int64_t *out_offsets)
{
    int16_t byte_of[FIRST_PRINTABLE_STAND_IN + N_STAND_INS];
    alphabet(byte_of);
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *text = blob + offsets[i];
        int64_t size = offsets[i + 1] - offsets[i];
        int64_t length = wanted[i] ? turn(byte_of, text, size, out + at) : -1;
        if (length < 0) {
            wanted[i] = 0;
            memcpy(out + at, text, (size_t)size);
            length = size;
        }
        out_offsets[i] = at;
        at += length;
    }
    out_offsets[n] = at;
}

void rf_bpe_index(rf_bpe *b, const uint8_t *wanted, int64_t n)
{
    rf_index(&b->strings, wanted, n);
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        b->bytes[i] = rf_find(&b->strings, &byte, 1);
    }
}

int32_t rf_bpe_find(const rf_bpe *b, const uint8_t *text, int64_t n)
{
    return rf_find(&b->strings, text, n);
}

/* ---- merges ------------------------------------------------------------------------------------------------- */

/* The slot that holds this pair, or the free slot where it belongs. */
static int64_t pair_slot(const rf_bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    int64_t slot = (int64_t)((h >> 32) & (uint64_t)b->pair_mask);
    while (b->pair_slots[slot] >= 0) {
        int32_t rank = b->pair_slots[slot];
        if (b->left[rank] == left && b->right[rank] == right)
            break;
        slot = (slot + 1) & b->pair_mask;
    }
    return slot;
}

int64_t rf_bpe_merges(rf_bpe *b, const uint8_t *blob, const int64_t *offsets, int64_t n, uint8_t *scratch,
                      int32_t *left, int32_t *right, int32_t *made)
{
    int16_t byte_of[FIRST_PRINTABLE_STAND_IN + N_STAND_INS];
    alphabet(byte_of);
    b->left = left;
    b->right = right;
    b->made = made;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *text = blob + offsets[i];
        int64_t size = offsets[i + 1] - offsets[i];
        const uint8_t *blank = size > 2 ? memchr(text + 1, ' ', (size_t)(size - 2)) : NULL;
        if (!blank)
            return i;
        int64_t first = turn(byte_of, text, blank - text, scratch);
        int64_t second = first < 0 ? -1 : turn(byte_of, blank + 1, text + size - blank - 1, scratch + first);
        left[i] = right[i] = made[i] = -1;
        if (second < 0)
            continue;
        left[i] = rf_find(&b->strings, scratch, first);
        right[i] = rf_find(&b->strings, scratch + first, second);
        made[i] = rf_find(&b->strings, scratch, first + second);
        if (left[i] < 0 || right[i] < 0 || made[i] < 0)
            continue;
        int64_t slot = pair_slot(b, left[i], right[i]);
        if (b->pair_slots[slot] < 0) /* of equal merges the first counts */
            b->pair_slots[slot] = (int32_t)i;
    }
    return -1;
}

static int32_t pair(const void *vocabulary, const rf_chain *c, int32_t left, int32_t right, int32_t *made)
{
    const rf_bpe *b = vocabulary;
    if (c->id[left] < 0 || c->id[right] < 0)
        return -1;
    int32_t rank = b->pair_slots[pair_slot(b, c->id[left], c->id[right])];
    if (rank >= 0)
        *made = b->made[rank];
    return rank;
}

/* ---- encoding ----------------------------------------------------------------------------------------------- */

static int64_t encode_word(const rf_bpe *b, const uint8_t *word, int64_t n, rf_chain *c, int32_t *out)
{
    if (b->whole_words && n <= b->longest) {
        int32_t id = rf_find(&b->strings, word, n);
        if (id >= 0) {
            *out = id;
            return 1;
        }
    }
    for (int64_t i = 0; i < n; i++)
        c->id[i] = b->bytes[word[i]];
    rf_merge(c, (int32_t)n, pair, b);
    int64_t count = 0;
    for (int32_t i = 0; i >= 0; i = c->next[i])
        if (c->id[i] >= 0)
            out[count++] = c->id[i];
    return count;
}

int64_t rf_bpe_encode(const rf_bpe *b, const uint8_t *text, int64_t n, const uint8_t *starts, int32_t *work,
                      int64_t capacity, int32_t *out)
{
    rf_chain c = rf_chain_at(work, capacity);
    int64_t count = 0, begin = 0, character = 0;
    for (int64_t i = 1; i <= n; i++) {
        if (i < n && (text[i] & 0xc0) == 0x80)
            continue;
        if (!starts[++character])
            continue;
        if (i - begin > capacity || i - begin > INT32_MAX)
            return -1;
        count += encode_word(b, text + begin, i - begin, &c, out + count);
        begin = i;
    }
    return count;
}
