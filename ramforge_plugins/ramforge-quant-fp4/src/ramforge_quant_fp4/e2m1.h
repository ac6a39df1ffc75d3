/* e2m1.h: the 16 numbers of a 4-bit float (sign, 2 bits of exponent, 1 of mantissa), doubled, so that they are integers.
 * Source: kvalues_mxfp4 of ggml, ggml-common.h; OCP Microscaling Formats 1.0, E2M1. */
#ifndef RF_E2M1_H
#define RF_E2M1_H
#include <stdint.h>

enum { RF_E2M1_MAX = 12 };
static const int8_t rf_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
/* The same with RF_E2M1_MAX added, to be multiplied as unsigned weights. */
static const int8_t rf_e2m1_weights[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
#endif
