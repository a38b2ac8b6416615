/* The short way of the row family for bfloat16 scores. */
#define SCORE_DTYPE 2
#include "row.cu"
