/* The wide family for float16 scores. */
#define SCORE_DTYPE 1
#include "wide.cu"
