/* What Python sees of spm.h. */

typedef struct {
    const uint8_t *blob;
    const int64_t *offsets;
    int32_t *slots;
    int64_t mask;
    ...;
} rf_strings;

typedef struct {
    rf_strings strings;
    const int32_t *order;
    uint8_t *joins;
    int64_t longest;
    int32_t bytes[256];
    int32_t unknown;
    ...;
} rf_spm;

#define RF_SPM_ARRAYS ...
#define RF_SPM_JOINS ...

void rf_spm_index(rf_spm *s, const uint8_t *wanted, int64_t n);
int32_t rf_spm_find(const rf_spm *s, const uint8_t *text, int64_t n);
int64_t rf_spm_longest_part(const rf_spm *s, const uint8_t *text, int64_t n);
int64_t rf_spm_encode(const rf_spm *s, const uint8_t *text, int64_t n, int32_t *work, int64_t capacity, int32_t *out);
