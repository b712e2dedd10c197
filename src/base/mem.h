/* mem.h - allocation.
 *
 * mem_alloc and mem_zalloc serve small fixed sizes, never return NULL and abort when memory is gone.
 * mem_try* serve every size that comes from input or configuration and may return NULL.
 * All of them are given back with mem_free.
 */
#ifndef HOLDFAST_BASE_MEM_H
#define HOLDFAST_BASE_MEM_H

#include "base/base.h"

NODISCARD void *mem_alloc(size_t n);
NODISCARD void *mem_zalloc(size_t n);
NODISCARD void *mem_try(size_t n);
NODISCARD void *mem_try_zalloc(size_t n);
/* n elements of size bytes, zeroed; NULL also when the product overflows. */
NODISCARD void *mem_try_array(size_t n, size_t size);
/* p may be NULL; on failure p stays valid and NULL is returned. */
NODISCARD void *mem_try_realloc(void *p, size_t n);
/* For SIMD and big pages: align is a power of two; not zeroed. */
NODISCARD void *mem_try_aligned(size_t align, size_t n);
/* For large arrays: 64-byte aligned, not zeroed; from 1 MiB on the system is asked for huge pages. */
NODISCARD void *mem_try_huge(size_t n);
/* Part of a block from there that is not needed for now: the system has the memory back, and what it held is lost,
 * but it may be written again as before. */
void mem_give_back(void *p, size_t n);
NODISCARD char *mem_strdup(const char *s); /* aborts like mem_alloc */
void mem_free(void *p);

/* Fault injection for tests: the n-th mem_try* call from now fails (1 = the next), and every one
 * after it; 0 switches it off.  Process-wide. */
void mem_fail_after(uint64_t n);

/* Grow *p (array of elements of size bytes, capacity *cap) to hold n; doubles.  False on failure,
 * array untouched. */
NODISCARD bool mem_grow(void *p, size_t *cap, size_t n, size_t size);

/* Once, before there are threads, in a process that lives long: every block of 64 KiB or more is mapped by itself, so that
 * what is freed goes back to the system.  (glibc raises this limit as large blocks are freed; snapshots and
 * slabs of KV then come from heaps, whose holes took as much again as --cache-ram.) */
void mem_map_large(void);

#endif
