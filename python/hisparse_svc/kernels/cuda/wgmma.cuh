// Products of a warpgroup with A in registers: d (64 x HEADS) += a (64 x 16) b (16 x HEADS), b by descriptor.
#pragma once
#include "hopper.cuh"

// Shared memory that holds b. Rows of 128 or 64 bytes, swizzled: 16-byte piece c of row r lies at piece c ^ (r % 8), or
// c ^ (r / 2 % 4). Eight rows follow each other at eight times their bytes.
constexpr u64 SWIZZLE_128 = 1ull << 62, SWIZZLE_64 = 2ull << 62;
__device__ __forceinline__ u64 b_of_rows(u32 at) {           // k runs along a row of 128 bytes
  return SWIZZLE_128 | (u64)(1024 >> 4) << 32 | 1ull << 16 | at >> 4;
}
template <int ROW_WIDTH>
__device__ __forceinline__ u64 b_of_columns(u32 at) {        // k runs over rows, of ROW_WIDTH bytes
  static_assert(ROW_WIDTH == 128 || ROW_WIDTH == 64, "one swizzle wide");
  constexpr u64 eight_rows = 8 * ROW_WIDTH >> 4;
  return (ROW_WIDTH == 128 ? SWIZZLE_128 : SWIZZLE_64) | eight_rows << 32 | eight_rows << 16 | at >> 4;
}

__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `N` committed groups run.
template <int N>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// What ordinary stores wrote to shared memory is seen by products from here on.
__device__ __forceinline__ void products_see_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_32(TYPE, TRANSPOSED)                                                                                    \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE     \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, " TRANSPOSED \
               "; }"                                                                                                  \
               : D4(0), D4(4), D4(8), D4(12)                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)                                   \
               : "memory")
#define WGMMA_64(TYPE, TRANSPOSED)                                                                                    \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE     \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
               "%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, " TRANSPOSED "; }"                              \
               : D4(0), D4(4), D4(8), D4(12), D4(16), D4(20), D4(24), D4(28)                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)                                   \
               : "memory")

enum Half { F16, BF16 };
// COLUMNS: b is as `b_of_columns` says. accumulate 0: d = a b.
template <Half HALF, bool COLUMNS>
__device__ __forceinline__ void multiply_async(float (&d)[16], const u32 (&a)[4], u64 b, int accumulate) {
  if constexpr (HALF == F16 && COLUMNS) WGMMA_32("f16", "1");
  else if constexpr (HALF == F16) WGMMA_32("f16", "0");
  else if constexpr (COLUMNS) WGMMA_32("bf16", "1");
  else WGMMA_32("bf16", "0");
}
template <Half HALF, bool COLUMNS>
__device__ __forceinline__ void multiply_async(float (&d)[32], const u32 (&a)[4], u64 b, int accumulate) {
  if constexpr (HALF == F16 && COLUMNS) WGMMA_64("f16", "1");
  else if constexpr (HALF == F16) WGMMA_64("f16", "0");
  else if constexpr (COLUMNS) WGMMA_64("bf16", "1");
  else WGMMA_64("bf16", "0");
}
#undef D4
#undef WGMMA_32
#undef WGMMA_64

__device__ __forceinline__ u32 multiply_f16x2(u32 x, u32 y) {
  u32 d;
  asm volatile("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(y));
  return d;
}
__device__ __forceinline__ u32 multiply_bf16x2(u32 x, u32 y) {
  u32 d;
  asm volatile("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(x), "r"(y));
  return d;
}
