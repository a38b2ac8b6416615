/* The short way of the row family for float16 scores. */
#define SCORE_DTYPE 1
#include "row.cu"
