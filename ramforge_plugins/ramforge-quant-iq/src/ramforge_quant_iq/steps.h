/* steps.h: the 16 values of IQ4_NL and IQ4_XS. Source: kvalues_iq4nl of ggml, ggml-common.h. */
#ifndef RF_STEPS_H
#define RF_STEPS_H
#include <stdint.h>

static const int8_t rf_steps[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
#endif
