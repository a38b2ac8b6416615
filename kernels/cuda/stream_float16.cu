/* The stream families for float16 scores. */
#define SCORE_DTYPE 1
#include "stream.cu"
