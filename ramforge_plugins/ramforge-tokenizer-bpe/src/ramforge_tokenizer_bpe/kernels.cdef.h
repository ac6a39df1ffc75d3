/* What Python sees of bpe.h and split.h. */

typedef struct {
    const uint8_t *blob;
    const int64_t *offsets;
    int32_t *slots;
    int64_t mask;
    ...;
} rf_strings;

typedef struct {
    rf_strings strings;
    const int32_t *left;
    const int32_t *right;
    const int32_t *made;
    int32_t *pair_slots;
    int64_t pair_mask;
    int64_t longest;
    int32_t whole_words;
    int32_t bytes[256];
    ...;
} rf_bpe;

#define RF_SPLIT_DEFAULT ...
#define RF_SPLIT_GPT2 ...
#define RF_SPLIT_LLAMA3 ...
#define RF_SPLIT_QWEN2 ...
#define RF_SPLIT_DIGITS ...
#define RF_SPLIT_FALCON ...
#define RF_SPLIT_DEEPSEEK_LLM ...
#define RF_SPLIT_DEEPSEEK_CODER ...
#define RF_SPLIT_GPT4O ...
#define RF_CHAIN_ARRAYS ...

void rf_bpe_decode(const uint8_t *blob, const int64_t *offsets, int64_t n, uint8_t *wanted, uint8_t *out, int64_t *out_offsets);
void rf_bpe_index(rf_bpe *b, const uint8_t *wanted, int64_t n);
int32_t rf_bpe_find(const rf_bpe *b, const uint8_t *text, int64_t n);
int64_t rf_bpe_merges(rf_bpe *b, const uint8_t *blob, const int64_t *offsets, int64_t n, uint8_t *scratch, int32_t *left,
                      int32_t *right, int32_t *made);
int64_t rf_split(int32_t split, const uint8_t *text, int64_t n, uint32_t *points, uint8_t *classes, uint8_t *starts,
                 int64_t *longest);
int64_t rf_bpe_encode(const rf_bpe *b, const uint8_t *text, int64_t n, const uint8_t *starts, int32_t *work,
                      int64_t capacity, int32_t *out);
