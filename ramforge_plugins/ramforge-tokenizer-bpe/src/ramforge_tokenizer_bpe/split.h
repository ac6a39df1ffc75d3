/* split.h: cutting text into words before byte-pair merging. See split.c. */
#ifndef RAMFORGE_SPLIT_H
#define RAMFORGE_SPLIT_H

#include <stdint.h>

enum {
    RF_SPLIT_DEFAULT,
    RF_SPLIT_GPT2,
    RF_SPLIT_LLAMA3,
    RF_SPLIT_QWEN2,
    RF_SPLIT_DIGITS, /* each digit alone, then as GPT-2: smollm, starcoder, refact, command-r */
    RF_SPLIT_FALCON,
    RF_SPLIT_DEEPSEEK_LLM,
    RF_SPLIT_DEEPSEEK_CODER,
    RF_SPLIT_GPT4O,
    RF_N_SPLITS
};

/* Mark where words begin.
 *   text        n bytes of valid UTF-8
 *   points      room for n code points
 *   classes     room for n classes
 *   starts      room for n + 1 marks: starts[i] is 1 if character i begins a word; the mark behind the last is set
 *   longest     out: bytes of the longest word
 * Returns the number of characters, or -1 if the text is not UTF-8 or the split is unknown. */
int64_t rf_split(int32_t split, const uint8_t *text, int64_t n, uint32_t *points, uint8_t *classes, uint8_t *starts,
                 int64_t *longest);

#endif
