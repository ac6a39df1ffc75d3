/* split.c: cutting text into words before byte-pair merging, as each kind of vocabulary was trained with.
 *
 * A kind is a list of rules. A rule looks at every piece that the rules before it left, and cuts it further. Most rules
 * isolate runs of a class of characters; three follow a whole pattern (GPT-2's, Llama 3's and GPT-4o's). All go through a piece from
 * left to right once: linear time, constant stack.
 *
 * Patterns: the files tokenizer.json of the models, and llama.cpp (src/llama-vocab.cpp, src/unicode.cpp, MIT), which
 * files are made for; where the two differ llama.cpp counts, and golden vectors decide.
 */
#include "split.h"

#include <string.h>

#include "unicode_classes.h"

enum { LETTER = 1, NUMBER = 2, PUNCTUATION = 4, SYMBOL = 8, MARK = 16, SPACE = 32 };

typedef struct {
    uint32_t first, last;
} range;

typedef struct {
    const uint32_t *points; /* code points of the text */
    const uint8_t *classes;
    uint8_t *starts;
} text_view;

/* ---- rules -------------------------------------------------------------------------------------------------- */

typedef enum { END, ISOLATE, TRAILING_SPACE, LIKE_GPT2, LIKE_LLAMA3, LIKE_GPT4O } rule_kind;

typedef struct {
    rule_kind kind;
    uint8_t classes;     /* ISOLATE: any of these classes, */
    const range *ranges; /*          or one of these ranges, ascending */
    int n_ranges;
    int width; /* ISOLATE: 0 for a whole run, else exactly so many; LIKE_LLAMA3: digits in a group */
    int space; /* ISOLATE: one blank in front belongs to the run */
} rule;

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define RANGES(array) (array), COUNT(array)

static const range NEWLINES[] = {{'\n', '\n'}, {'\r', '\r'}};
static const range ASCII_DIGITS[] = {{'0', '9'}};
static const range MATHS[] = {{'$', '$'}, {'+', '+'}, {'<', '>'}, {'^', '^'}, {'|', '|'}, {'~', '~'}};
static const range MATHS_AND_GRAVE[] = {{'$', '$'}, {'+', '+'}, {'<', '>'}, {'^', '^'}, {'`', '`'}, {'|', '|'}, {'~', '~'}};
static const range DEEPSEEK_CJK[] = {{0x800, 0x9fa5}, {0xac00, 0xd7ff}};
static const range DEEPSEEK_PUNCTUATION[] = {{'!', '/'}, {':', '~'}, {0x2018, 0x201f}, {0x3000, 0x3002}, {0xff01, 0xff0f}, {0xff1a, 0xff5e}};
/* Letters of scripts with two cases, as the tokenizer of DeepSeek LLM lists them. */
static const range DEEPSEEK_LETTERS[] = {
    {0x41, 0x5a}, {0x61, 0x7a}, {0xb5, 0xb5}, {0xc0, 0xd6}, {0xd8, 0xf6}, {0xf8, 0x1ba}, {0x1bc, 0x1bf},
    {0x1c4, 0x293}, {0x295, 0x2af}, {0x370, 0x373}, {0x376, 0x377}, {0x37b, 0x37d}, {0x37f, 0x37f}, {0x386, 0x386},
    {0x388, 0x38a}, {0x38c, 0x38c}, {0x38e, 0x3a1}, {0x3a3, 0x3f5}, {0x3f7, 0x481}, {0x48a, 0x52f}, {0x531, 0x556},
    {0x10a0, 0x10c5}, {0x13a0, 0x13f5}, {0x13f8, 0x13fd}, {0x1c90, 0x1cba}, {0x1cbd, 0x1cbf}, {0x1d00, 0x1d2b},
    {0x1d6b, 0x1d77}, {0x1d79, 0x1d9a}, {0x1e00, 0x1f15}, {0x1f18, 0x1f1d}, {0x1f20, 0x1f45}, {0x1f48, 0x1f4d},
    {0x1f50, 0x1f57}, {0x1f59, 0x1f59}, {0x1f5b, 0x1f5b}, {0x1f5d, 0x1f5d}, {0x1f5f, 0x1f7d}, {0x1f80, 0x1fb4},
    {0x1fb6, 0x1fbc}, {0x1fbe, 0x1fbe}, {0x1fc2, 0x1fc4}, {0x1fc6, 0x1fcc}, {0x1fd0, 0x1fd3}, {0x1fd6, 0x1fdb},
    {0x1fe0, 0x1fec}, {0x1ff2, 0x1ff4}, {0x1ff6, 0x1ffc}, {0x2102, 0x2102}, {0x2107, 0x2107}, {0x210a, 0x2113},
    {0x2115, 0x2115}, {0x2119, 0x211d}, {0x2124, 0x2124}, {0x2126, 0x2126}, {0x2128, 0x2128}, {0x212a, 0x212d},
    {0x212f, 0x2134}, {0x2139, 0x2139}, {0x213c, 0x213f}, {0x2145, 0x2149}, {0x214e, 0x214e}, {0x2183, 0x2184},
    {0x2c00, 0x2c7b}, {0x2c7e, 0x2ce4}, {0x2ceb, 0x2cee}, {0x2cf2, 0x2cf3}, {0xa640, 0xa66d}, {0xa680, 0xa69b},
    {0xa722, 0xa76f}, {0xa771, 0xa787}, {0xa78b, 0xa78e}, {0xab70, 0xabbf}, {0xfb00, 0xfb06}, {0xfb13, 0xfb17},
    {0xff21, 0xff3a}, {0xff41, 0xff5a}, {0x10400, 0x1044f}, {0x104b0, 0x104d3}, {0x104d8, 0x104fb},
    {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2}, {0x118a0, 0x118df}, {0x1e900, 0x1e943},
};

#define MAX_RULES 7

static const rule RULES[RF_N_SPLITS][MAX_RULES] = {
    [RF_SPLIT_DEFAULT] = {{ISOLATE, PUNCTUATION, RANGES(MATHS), 0, 0},
                          {LIKE_GPT2, 0, NULL, 0, 0, 0},
                          {ISOLATE, NUMBER, NULL, 0, 0, 0},
                          {ISOLATE, 0, RANGES(ASCII_DIGITS), 3, 0}},
    [RF_SPLIT_GPT2] = {{LIKE_GPT2, 0, NULL, 0, 0, 0}},
    [RF_SPLIT_LLAMA3] = {{LIKE_LLAMA3, 0, NULL, 0, 3, 0}},
    [RF_SPLIT_QWEN2] = {{LIKE_LLAMA3, 0, NULL, 0, 1, 0}},
    [RF_SPLIT_DIGITS] = {{ISOLATE, NUMBER, NULL, 0, 1, 0}, {LIKE_GPT2, 0, NULL, 0, 0, 0}},
    [RF_SPLIT_FALCON] = {{ISOLATE, PUNCTUATION, RANGES(MATHS_AND_GRAVE), 0, 0},
                         {LIKE_GPT2, 0, NULL, 0, 0, 0},
                         {ISOLATE, 0, RANGES(ASCII_DIGITS), 3, 0}},
    [RF_SPLIT_DEEPSEEK_LLM] = {{ISOLATE, 0, RANGES(NEWLINES), 1, 0},
                               {ISOLATE, 0, RANGES(DEEPSEEK_LETTERS), 0, 1},
                               {ISOLATE, 0, RANGES(DEEPSEEK_PUNCTUATION), 0, 1},
                               {TRAILING_SPACE, 0, NULL, 0, 0, 0},
                               {ISOLATE, 0, RANGES(DEEPSEEK_CJK), 0, 0},
                               {ISOLATE, NUMBER, NULL, 0, 0, 0}},
    [RF_SPLIT_DEEPSEEK_CODER] = {{ISOLATE, 0, RANGES(NEWLINES), 1, 0},
                                 {ISOLATE, LETTER, NULL, 0, 0, 1},
                                 {ISOLATE, PUNCTUATION, NULL, 0, 0, 1},
                                 {ISOLATE, 0, RANGES(DEEPSEEK_CJK), 0, 0},
                                 {ISOLATE, NUMBER, NULL, 0, 1, 0}},
    [RF_SPLIT_GPT4O] = {{LIKE_GPT4O, 0, NULL, 0, 3, 0}},
};

/* ---- classes ------------------------------------------------------------------------------------------------ */

static uint8_t class_of(uint32_t point)
{
    if (point < 128)
        return rf_ascii[point];
    int low = 0, high = RF_N_RUNS; /* the run is the last that begins at or before the point */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (rf_runs[middle] >> 8 <= point)
            low = middle;
        else
            high = middle;
    }
    return (uint8_t)(rf_runs[low] & 0xff);
}

/* Code points of UTF-8 text; -1 if it is none. */
static int64_t decode(const uint8_t *text, int64_t n, uint32_t *points)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; count++) {
        uint8_t lead = text[i++];
        int more = lead < 0x80 ? 0 : lead < 0xc2 ? -1 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : -1;
        if (more < 0 || i + more > n)
            return -1;
        uint32_t point = more ? lead & (0x3fu >> more) : lead;
        for (; more > 0; more--, i++) {
            if ((text[i] & 0xc0) != 0x80)
                return -1;
            point = point << 6 | (text[i] & 0x3f);
        }
        points[count] = point;
    }
    return count;
}

static int in_class(const text_view *t, const rule *r, int64_t i)
{
    if (t->classes[i] & r->classes)
        return 1;
    uint32_t point = t->points[i];
    if (r->n_ranges == 0 || ((t->classes[i] & SPACE) && point > 0x7f))
        return 0; /* llama.cpp turns such blanks into a vertical tab before it looks at ranges */
    int low = 0, high = r->n_ranges;
    while (low < high) {
        int middle = (low + high) / 2;
        if (r->ranges[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->n_ranges && r->ranges[low].first <= point;
}

/* ---- rules at work: each cuts the piece [begin, end) -------------------------------------------------------- */

static void isolate(const text_view *t, const rule *r, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end;) {
        int64_t first = i + (r->space && (t->classes[i] & SPACE)), last = first;
        int64_t limit = r->width && first + r->width < end ? first + r->width : end;
        while (last < limit && in_class(t, r, last))
            last++;
        if (last == first || (r->width && last - first < r->width)) {
            i++;
            continue;
        }
        t->starts[i] = t->starts[last] = 1;
        i = last;
    }
}

static void trailing_space(const text_view *t, int64_t begin, int64_t end)
{
    while (end > begin && (t->classes[end - 1] & SPACE))
        end--;
    t->starts[end] = 1;
}

static uint32_t lower(uint32_t point)
{
    return point >= 'A' && point <= 'Z' ? point + 32 : point;
}

/* Length of an English contraction at i ('s 't 'm 'd 're 've 'll), 0 if there is none. */
static int contraction(const text_view *t, int64_t i, int64_t end, int any_case)
{
    if (t->points[i] != '\'' || i + 1 >= end)
        return 0;
    uint32_t a = any_case ? lower(t->points[i + 1]) : t->points[i + 1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (i + 2 >= end)
        return 0;
    uint32_t b = any_case ? lower(t->points[i + 2]) : t->points[i + 2];
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* End of the run of characters from i whose class is among these (or, if `outside`, is none of them). */
static int64_t run(const text_view *t, int64_t i, int64_t end, int classes, int outside)
{
    while (i < end && ((t->classes[i] & classes) == 0) == outside)
        i++;
    return i;
}

/* \s+(?!\S)|\s+ : blanks, but the last stays with the word behind it. */
static int64_t blanks(const text_view *t, int64_t i, int64_t end)
{
    int64_t last = run(t, i, end, SPACE, 0);
    return last < end && last - i > 1 ? last - 1 : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static void like_gpt2(const text_view *t, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; t->starts[i] = 1) {
        int length = contraction(t, i, end, 0);
        if (length) {
            i += length;
            continue;
        }
        int64_t first = i + (t->points[i] == ' ' && i + 1 < end);
        int class = t->classes[first];
        if (class & LETTER)
            i = run(t, first, end, LETTER, 0);
        else if (class & NUMBER)
            i = run(t, first, end, NUMBER, 0);
        else if (!(class & SPACE))
            i = run(t, first, end, SPACE | LETTER | NUMBER, 1);
        else
            i = blanks(t, i, end);
    }
}

static int newline(uint32_t point)
{
    return point == '\n' || point == '\r';
}

/* Blanks up to the last newline among them (\s*[\r\n]+), else as `blanks`. */
static int64_t blanks_and_newlines(const text_view *t, int64_t i, int64_t end)
{
    int64_t last = run(t, i, end, SPACE, 0);
    while (last > i && !newline(t->points[last - 1]))
        last--;
    return last > i ? last : blanks(t, i, end);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,width}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static void like_llama3(const text_view *t, const rule *r, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; t->starts[i] = 1) {
        int length = contraction(t, i, end, 1);
        if (length) {
            i += length;
            continue;
        }
        int class = t->classes[i];
        int lead = !(class & (LETTER | NUMBER)) && !newline(t->points[i]); /* may stand before a word */
        if ((class & LETTER) || (lead && i + 1 < end && (t->classes[i + 1] & LETTER))) {
            i = run(t, i + 1, end, LETTER, 0);
            continue;
        }
        if (class & NUMBER) {
            i = run(t, i, i + r->width < end ? i + r->width : end, NUMBER, 0);
            continue;
        }
        int64_t first = i + (t->points[i] == ' ' && i + 1 < end);
        if (t->classes[first] & (SPACE | LETTER | NUMBER)) {
            i = blanks_and_newlines(t, i, end);
            continue;
        }
        i = run(t, first, end, SPACE | LETTER | NUMBER, 1);
        while (i < end && newline(t->points[i]))
            i++;
    }
}

static int is_upper(uint32_t point)
{
    return point >= 'A' && point <= 'Z';
}

/* End of a word whose letters begin at i: A*B+ or else A+, A being letters but a-z, B letters but A-Z, so that a word
 * ends before a capital that follows a small letter. Letters outside ASCII are both. */
static int64_t cased_word(const text_view *t, int64_t i, int64_t end)
{
    int64_t letters = run(t, i, end, LETTER, 0), small = i;
    while (small < letters && !(t->points[small] >= 'a' && t->points[small] <= 'z'))
        small++;
    if (small == letters) { /* none: B+ is what the last letter outside ASCII begins */
        while (small > i && is_upper(t->points[small - 1]))
            small--;
        if (small == i)
            return letters;
    }
    while (small < letters && !is_upper(t->points[small]))
        small++;
    return small;
}

/* [^\r\n\p{L}\p{N}]?(A*B+|A+B*)(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,width}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|
 * \s+(?!\S)|\s+ */
static void like_gpt4o(const text_view *t, const rule *r, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; t->starts[i] = 1) {
        int class = t->classes[i];
        int lead = !(class & (LETTER | NUMBER)) && !newline(t->points[i]); /* may stand before a word */
        if ((class & LETTER) || (lead && i + 1 < end && (t->classes[i + 1] & LETTER))) {
            i = cased_word(t, i + !(class & LETTER), end);
            i += i < end ? contraction(t, i, end, 1) : 0;
            continue;
        }
        if (class & NUMBER) {
            i = run(t, i, i + r->width < end ? i + r->width : end, NUMBER, 0);
            continue;
        }
        int64_t first = i + (t->points[i] == ' ' && i + 1 < end);
        if (t->classes[first] & (SPACE | LETTER | NUMBER)) {
            i = blanks_and_newlines(t, i, end);
            continue;
        }
        i = run(t, first, end, SPACE | LETTER | NUMBER, 1);
        while (i < end && (newline(t->points[i]) || t->points[i] == '/'))
            i++;
    }
}

static void apply(const text_view *t, const rule *r, int64_t n)
{
    for (int64_t begin = 0, end; begin < n; begin = end) {
        /* found before the rule sets marks of its own inside the piece */
        const uint8_t *mark = memchr(t->starts + begin + 1, 1, (size_t)(n - begin));
        end = mark - t->starts;
        switch (r->kind) {
        case ISOLATE:
            isolate(t, r, begin, end);
            break;
        case TRAILING_SPACE:
            trailing_space(t, begin, end);
            break;
        case LIKE_GPT2:
            like_gpt2(t, begin, end);
            break;
        case LIKE_LLAMA3:
            like_llama3(t, r, begin, end);
            break;
        case LIKE_GPT4O:
            like_gpt4o(t, r, begin, end);
            break;
        case END:
            break;
        }
    }
}

static int64_t longest_word(const uint8_t *text, int64_t n, const uint8_t *starts)
{
    int64_t longest = 0, begin = 0, character = -1;
    for (int64_t i = 0; i <= n; i++) {
        if (i < n && (text[i] & 0xc0) == 0x80)
            continue;
        if (!starts[++character])
            continue;
        if (i - begin > longest)
            longest = i - begin;
        begin = i;
    }
    return longest;
}

int64_t rf_split(int32_t split, const uint8_t *text, int64_t n, uint32_t *points, uint8_t *classes, uint8_t *starts,
                 int64_t *longest)
{
    if (split < 0 || split >= RF_N_SPLITS)
        return -1;
    int64_t count = decode(text, n, points);
    if (count < 0)
        return -1;
    for (int64_t i = 0; i < count; i++)
        classes[i] = class_of(points[i]);
    memset(starts, 0, (size_t)count + 1);
    starts[0] = starts[count] = 1;
    text_view t = {points, classes, starts};
    for (const rule *r = RULES[split]; r->kind != END; r++)
        apply(&t, r, count);
    *longest = longest_word(text, n, starts);
    return count;
}
