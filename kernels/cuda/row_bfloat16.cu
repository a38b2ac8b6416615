/* The row family for bfloat16 scores. */
#define SCORE_DTYPE 2
#include "row_half.cuh"
