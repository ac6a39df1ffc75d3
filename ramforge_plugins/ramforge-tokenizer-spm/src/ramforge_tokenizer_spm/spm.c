/* spm.c: SentencePiece byte-pair encoding over a GGUF vocabulary of model `llama`.
 *
 * Characters are merged pair by pair: of all neighbours that make a token, those with the best score first, the leftmost
 * of equal ones. A character without a token is said byte by byte.
 *
 * SentencePiece sees a whole text as one word. Two neighbouring characters that stand side by side in no token can never
 * be merged though, so the text is cut there first: the result is the same, and the parts are mostly words.
 */
#include "spm.h"

static int begins_character(uint8_t byte)
{
    return (byte & 0xc0) != 0x80;
}

static int64_t next_character(const uint8_t *text, int64_t n, int64_t i)
{
    do
        i++;
    while (i < n && !begins_character(text[i]));
    return i;
}

static int join_bit(const uint8_t *joins, uint8_t before, uint8_t behind)
{
    int index = before << 8 | behind;
    return joins[index >> 3] >> (index & 7) & 1;
}

void rf_spm_index(rf_spm *s, const uint8_t *wanted, int64_t n)
{
    rf_index(&s->strings, wanted, n);
    for (int64_t token = 0; token < n; token++) {
        if (!wanted[token])
            continue;
        for (int64_t i = s->strings.offsets[token] + 1; i < s->strings.offsets[token + 1]; i++) {
            const uint8_t *text = s->strings.blob;
            int index = text[i - 1] << 8 | text[i];
            if (begins_character(text[i]))
                s->joins[index >> 3] |= (uint8_t)(1 << (index & 7));
        }
    }
}

int32_t rf_spm_find(const rf_spm *s, const uint8_t *text, int64_t n)
{
    return rf_find(&s->strings, text, n);
}

/* End of the part of the text that begins at i; its characters are counted. */
static int64_t part_end(const rf_spm *s, const uint8_t *text, int64_t n, int64_t i, int64_t *characters)
{
    *characters = 1;
    for (i = next_character(text, n, i); i < n && join_bit(s->joins, text[i - 1], text[i]); i = next_character(text, n, i))
        ++*characters;
    return i;
}

int64_t rf_spm_longest_part(const rf_spm *s, const uint8_t *text, int64_t n)
{
    int64_t longest = 0, characters;
    for (int64_t i = 0; i < n;) {
        i = part_end(s, text, n, i, &characters);
        if (characters > longest)
            longest = characters;
    }
    return longest;
}

/* One part of a text, its characters being merged. */
typedef struct {
    const rf_spm *spm;
    const uint8_t *text;
    int32_t n;
    int32_t *start; /* (characters): offset of each */
} part;

static int32_t symbol_end(const part *p, const rf_chain *c, int32_t symbol)
{
    return c->next[symbol] >= 0 ? p->start[c->next[symbol]] : p->n;
}

static int32_t pair(const void *vocabulary, const rf_chain *c, int32_t left, int32_t right, int32_t *made)
{
    const part *p = vocabulary;
    int32_t begin = p->start[left], end = symbol_end(p, c, right);
    if (end - begin > p->spm->longest)
        return -1;
    *made = rf_find(&p->spm->strings, p->text + begin, end - begin);
    return *made < 0 ? -1 : p->spm->order[*made];
}

/* A character without a token of its own: its bytes, or the unknown token if one of them has none either. */
static int64_t say_bytes(const rf_spm *s, const uint8_t *text, int64_t n, int32_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = s->bytes[text[i]];
        if (out[i] < 0) {
            out[0] = s->unknown;
            return s->unknown >= 0;
        }
    }
    return n;
}

static int64_t encode_part(const part *p, int32_t characters, rf_chain *c, int32_t *out)
{
    for (int32_t symbol = 0, i = 0; symbol < characters; symbol++) {
        int32_t end = (int32_t)next_character(p->text, p->n, i);
        p->start[symbol] = i;
        c->id[symbol] = rf_find(&p->spm->strings, p->text + i, end - i);
        i = end;
    }
    rf_merge(c, characters, pair, p);
    int64_t count = 0;
    for (int32_t symbol = 0; symbol >= 0; symbol = c->next[symbol]) {
        int32_t begin = p->start[symbol];
        if (c->id[symbol] >= 0)
            out[count++] = c->id[symbol];
        else
            count += say_bytes(p->spm, p->text + begin, symbol_end(p, c, symbol) - begin, out + count);
    }
    return count;
}

int64_t rf_spm_encode(const rf_spm *s, const uint8_t *text, int64_t n, int32_t *work, int64_t capacity, int32_t *out)
{
    rf_chain c = rf_chain_at(work, capacity);
    int64_t count = 0, characters;
    for (int64_t i = 0, end; i < n; i = end) {
        end = part_end(s, text, n, i, &characters);
        if (characters > capacity || end - i > INT32_MAX)
            return -1;
        part p = {s, text + i, (int32_t)(end - i), work + RF_CHAIN_ARRAYS * capacity};
        count += encode_part(&p, (int32_t)characters, &c, out + count);
    }
    return count;
}
