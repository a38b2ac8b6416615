/* The wide family for bfloat16 scores. */
#define SCORE_DTYPE 2
#include "wide.cu"
