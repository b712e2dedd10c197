/* lane.h - how the matrix kernels' helpers and unrolled loops are declared.
 *
 * LANE: inlined always, so that the layout and the tile's size are constants wherever they are asked
 * for.  foreach(i, n): i from 0 to n - 1, unrolled whole, so that the arrays it indexes live in
 * registers (a name that clang-format knows for a loop).
 *
 * Under a sanitizer (KERN_SMALL, room.cmake) both are left to the compiler, which else takes minutes.
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

#endif
