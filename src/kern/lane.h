/* lane.h - how the matrix kernels' helpers and unrolled loops are declared.
 *
 * LANE: inlined always, so that the layout and the tile's size are constants wherever they are asked
 * for.  foreach(i, n): i from 0 to n - 1, unrolled whole, so that the arrays it indexes live in
 * registers (a name that clang-format knows for a loop).
 *
 * KEEP(x): x is needed as it is here.  Else gcc regroups integer sums into trees, and spills them.
 *
 * Under a sanitizer (KERN_SMALL, room.cmake) the first two are left to the compiler, which else takes minutes.
 */
#ifndef HOLDFAST_KERN_LANE_H
#define HOLDFAST_KERN_LANE_H

#if KERN_SMALL || defined(LANES_PLAIN)
#define LANE static inline
#define foreach(i, n) for (int i = 0; i < (n); i++)
#else
#define LANE static inline __attribute__((always_inline))
#if defined(__clang__)
#define foreach(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define foreach(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif
#endif

#define KEEP(x) __asm__("" : "+v"(x))

#endif
