/* mat_heap.h - memory for a model's matrices, one behind the other in huge pages.
 *
 * Decoding reads all of them for every token.  Most are smaller than one or two huge pages, which begin
 * at fixed places: memory of its own would leave a matrix on small pages, and a third slower to read.
 *
 * Owner: who opens the model; one thread at a time.
 */
#ifndef HOLDFAST_NN_MAT_HEAP_H
#define HOLDFAST_NN_MAT_HEAP_H

#include "base/base.h"

struct mat_heap;

struct mat_heap *mat_heap_new(void);
/* Everything that was taken from it is gone. */
void mat_heap_free(struct mat_heap *h);
/* n bytes, 64-byte aligned, not cleared; NULL without memory. */
NODISCARD void *mat_heap_try(struct mat_heap *h, size_t n);

#endif
