// Products of a warpgroup with A in registers: d (64 x HEADS) += a (64 x 16) b (16 x HEADS), b by descriptor.
#pragma once
#include "hopper.cuh"

// Shared memory that holds b. Rows of 128 or 64 bytes, swizzled: 16-byte piece c of row r lies at piece c ^ (r % 8), or
// c ^ (r / 2 % 4). Eight rows follow each other at eight times their bytes.
//
// In a cluster a shared address has the block's rank above bit 24, where a descriptor has something else.
__device__ __forceinline__ u64 start_of(u32 at) { return (at & 0x3FFFF) >> 4; }
constexpr u64 SWIZZLE_128 = 1ull << 62, SWIZZLE_64 = 2ull << 62;
__device__ __forceinline__ u64 b_of_rows(u32 at) {           // k runs along a row of 128 bytes
  return SWIZZLE_128 | (u64)(1024 >> 4) << 32 | 1ull << 16 | start_of(at);
}
template <int ROW_WIDTH>
__device__ __forceinline__ u64 b_of_columns(u32 at) {        // k runs over rows, of ROW_WIDTH bytes
  static_assert(ROW_WIDTH == 128 || ROW_WIDTH == 64, "one swizzle wide");
  constexpr u64 eight_rows = 8 * ROW_WIDTH >> 4;
  return (ROW_WIDTH == 128 ? SWIZZLE_128 : SWIZZLE_64) | eight_rows << 32 | eight_rows << 16 | start_of(at);
}

__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `N` committed groups run.
template <int N>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_32(TYPE, TRANSPOSED)                                                                                    \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE     \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, " TRANSPOSED \
               "; }"                                                                                                  \
               : D4(0), D4(4), D4(8), D4(12)                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)                                   \
               : "memory")
#define WGMMA_48(TYPE, TRANSPOSED)                                                                                    \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %29, 0; wgmma.mma_async.sync.aligned.m64n48k16.f32." TYPE "." TYPE     \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23},"            \
               " {%24,%25,%26,%27}, %28, p, 1, 1, " TRANSPOSED "; }"                                                  \
               : D4(0), D4(4), D4(8), D4(12), D4(16), D4(20)                                                          \
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
__device__ __forceinline__ void multiply_async(float (&d)[24], const u32 (&a)[4], u64 b, int accumulate) {
  static_assert(HALF == BF16 && !COLUMNS, "what is used");
  WGMMA_48("bf16", "0");
}
template <Half HALF, bool COLUMNS>
__device__ __forceinline__ void multiply_async(float (&d)[32], const u32 (&a)[4], u64 b, int accumulate) {
  if constexpr (HALF == F16 && COLUMNS) WGMMA_64("f16", "1");
  else if constexpr (HALF == F16) WGMMA_64("f16", "0");
  else if constexpr (COLUMNS) WGMMA_64("bf16", "1");
  else WGMMA_64("bf16", "0");
}
#undef WGMMA_32
#undef WGMMA_48
#undef WGMMA_64

// Both operands in shared memory, bf16, k along rows (`b_of_rows`): d (64 x 64) = a b, and d += a b. The first form takes
// no old d, which would have to be put in place while other products run.
__device__ __forceinline__ void multiply_shared_first_async(float (&d)[24], u64 a, u64 b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, %24, %25, p, 1, 1, 0, 0; }"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]), "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23])
      : "l"(a), "l"(b)
      : "memory");
}
__device__ __forceinline__ void multiply_shared_async(float (&d)[24], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, %24, %25, 1, 1, 1, 0, 0;"
      : D4(0), D4(4), D4(8), D4(12), D4(16), D4(20)
      : "l"(a), "l"(b)
      : "memory");
}
__device__ __forceinline__ void multiply_shared_first_async(float (&d)[32], u64 a, u64 b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31}, %32, %33, p, 1, 1, 0, 0; }"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]), "=f"(d[8]),
        "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]), "=f"(d[16]),
        "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]),
        "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
      : "l"(a), "l"(b)
      : "memory");
}
__device__ __forceinline__ void multiply_shared_async(float (&d)[32], u64 a, u64 b) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31}, %32, %33, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b)
      : "memory");
}
// d (64 x 128) += a b in bf16, a in registers, b by columns: 64 of them in rows of 128 bytes, the next 64 `block` bytes on.
__device__ __forceinline__ u64 b_of_wide_columns(u32 at, int block) {
  return SWIZZLE_128 | (u64)(1024 >> 4) << 32 | (u64)(block >> 4) << 16 | start_of(at);
}
__device__ __forceinline__ void multiply_wide_async(float (&d)[64], const u32 (&a)[4], u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
      "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,"
      "%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
      "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
      : D4(0), D4(4), D4(8), D4(12), D4(16), D4(20), D4(24), D4(28), D4(32), D4(36), D4(40), D4(44), D4(48), D4(52),
        D4(56), D4(60)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}
#undef D4

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
