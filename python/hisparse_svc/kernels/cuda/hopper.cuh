// Instructions of Hopper (sm_90a) and older that C++ has no words for: shared memory by address, barriers that count
// bytes, bulk copies, clusters, matrix loads and products.
//
// Addresses are 32-bit shared-memory addresses throughout.
#pragma once
#include "far.cuh"

typedef u16 bf16;                                            // bits: the toolkit's headers are not on a user's machine

__device__ __forceinline__ float load_f32(u32 at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ float2 load_f32x2(u32 at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_f32x4(u32 at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ u32 load_u32(u32 at) {
  u32 v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_u32x4(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ void store_f32(u32 at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ void store_f32x2(u32 at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void store_u32(u32 at, u32 v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void store_u32x4(u32 at, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Barriers of a block that count arrivals and bytes. A wait names the phase's parity.
__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.shared.b64 t, [%0]; }" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(u32 barrier, int bytes) {
  asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared.b64 t, [%0], %1; }" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1; @done bra passed; bra again;"
      " passed: }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// The same for what other blocks of the cluster sent.
__device__ __forceinline__ void barrier_wait_far(u32 barrier, u32 parity) {
  asm volatile(
      "{ .reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1; @done bra passed;"
      " bra again; passed: }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Threads of a part of the block meet. Name 0 is __syncthreads.
template <int NAME, int COUNT>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(NAME), "n"(COUNT) : "memory");
}
// For those that others wait for there, and that wait for nobody.
template <int NAME, int COUNT>
__device__ __forceinline__ void arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(NAME), "n"(COUNT) : "memory");
}

constexpr u64 EVICT_FIRST = 0x12F0000000000000ull;            // a policy of the L2, for what is read once
// One row, global to shared; its bytes count on the barrier. Rows are read once: the L2 may drop them first.
__device__ __forceinline__ void copy_row(u32 to, const u8* from, int bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(EVICT_FIRST)
      : "memory");
}

// What this thread stored to shared memory is seen by products, and overtaken by no bulk copy to the same place, that are
// started behind this or behind a barrier that it then arrives at.
__device__ __forceinline__ void async_follows_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit elements to and from fragments.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void store_matrices(u32 at, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z),
               "r"(w)
               : "memory");
}

// d += a b on one warp: 16 x 16 times 16 x 8.
__device__ __forceinline__ void multiply_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Numbers: exact from e4m3, rounded to halves, powers of two by their bits.
__device__ __forceinline__ void e4m3x4_to_f16(u32 x, u32& low, u32& high) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
      : "=r"(low), "=r"(high)
      : "r"(x));
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ u32 pack_f16(float x, float y) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(x), "f"(y));
  return pair;
}
__device__ __forceinline__ u32 pack_bf16(float x, float y) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(x), "f"(y));
  return pair;
}
__device__ __forceinline__ float2 unpack_f16(u32 pair) {
  float2 v;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(v.x), "=f"(v.y) : "r"(pair));
  return v;
}
__device__ __forceinline__ float low_bf16(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high_bf16(u32 x) { return __uint_as_float(x & 0xFFFF0000u); }
// The power of two at or above |v|, kept within 2^-100 .. 2^99 so that it and its inverse are normal.
__device__ __forceinline__ float power_above(float v) {
  const u32 bits = min(max(__float_as_uint(fabsf(v)), 0x0D800000u), 0x71000000u);
  return __uint_as_float((bits + 0x007FFFFFu) & 0xFF800000u);
}
__device__ __forceinline__ float power_inverse(float power) {
  return __uint_as_float((254u << 23) - __float_as_uint(power));
}
