/* The stream families for bfloat16 scores. */
#define SCORE_DTYPE 2
#include "stream.cu"
