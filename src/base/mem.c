#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The one process-wide state in base: tests count allocations down.  Relaxed, since the exact
 * thread that meets the failure does not matter. */
static _Atomic uint64_t fail_after;

void mem_fail_after(uint64_t n)
{
    atomic_store_explicit(&fail_after, n, memory_order_relaxed);
}

static bool injected_failure(void)
{
    uint64_t n = atomic_load_explicit(&fail_after, memory_order_relaxed);
    while (n > 1)
        if (atomic_compare_exchange_weak_explicit(&fail_after, &n, n - 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return false;
    return n == 1;
}

static void *or_die(void *p, size_t n)
{
    if (!p) {
        fprintf(stderr, "holdfast: out of memory (%zu bytes)\n", n);
        abort();
    }
    return p;
}

void *mem_alloc(size_t n)
{
    return or_die(malloc(n ? n : 1), n);
}

void *mem_zalloc(size_t n)
{
    return or_die(calloc(1, n ? n : 1), n);
}

void *mem_try(size_t n)
{
    return injected_failure() ? NULL : malloc(n ? n : 1);
}

void *mem_try_zalloc(size_t n)
{
    return injected_failure() ? NULL : calloc(1, n ? n : 1);
}

void *mem_try_array(size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        return NULL;
    return mem_try_zalloc(bytes);
}

void *mem_try_realloc(void *p, size_t n)
{
    return injected_failure() ? NULL : realloc(p, n ? n : 1);
}

void *mem_try_aligned(size_t align, size_t n)
{
    size_t rounded;
    if (injected_failure() || __builtin_add_overflow(n, align - 1, &rounded))
        return NULL;
    rounded &= ~(align - 1);
    return aligned_alloc(align, rounded ? rounded : align);
}

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

void *mem_try_huge(size_t n)
{
    if (n < HUGE_PAGE / 2)
        return mem_try_aligned(64, n);
    /* The smaller ones need not begin at a huge page: neighbours of equal advice become one mapping. */
    void *p = mem_try_aligned(n < 4 * (size_t)HUGE_PAGE ? PAGE : HUGE_PAGE, n);
    if (p) /* a hint: without it all is slower, not wrong */
        (void)madvise(p, n, MADV_HUGEPAGE);
    return p;
}

void mem_give_back(void *p, size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t skip = (page - (uintptr_t)p % page) % page; /* whole pages only */
    if (n >= skip + page) /* refused where memory is locked: then it stays */
        (void)madvise((char *)p + skip, (n - skip) / page * page, MADV_DONTNEED);
}

char *mem_strdup(const char *s)
{
    const size_t n = strlen(s) + 1;
    return memcpy(mem_alloc(n), s, n);
}

void mem_free(void *p)
{
    free(p);
}

bool mem_grow(void *p, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap)
        return true;
    size_t want = *cap > SIZE_MAX / 2 ? n : MAX(n, *cap * 2);
    want = MAX(want, (size_t)8);
    size_t bytes;
    if (__builtin_mul_overflow(want, size, &bytes))
        return false;
    void *old;
    memcpy(&old, p, sizeof old);
    void *grown = mem_try_realloc(old, bytes);
    if (!grown)
        return false;
    memcpy(p, &grown, sizeof grown);
    *cap = want;
    return true;
}

void mem_map_large(void)
{
#ifdef M_MMAP_THRESHOLD
    (void)mallopt(M_MMAP_THRESHOLD, 64 * 1024);
#endif
}
