// The shared memory of a cluster's other blocks, by 32-bit address, and the barrier over all its threads (sm_90 and newer).
//
//   [ block 0 │ block 1 │ ... ]     in_block(at, n): where `at` of this block's shared memory is in block n's
//
// Where there are no clusters, a block is its own block 0.
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 900
#define CLUSTER_SPACE "shared::cluster"
#else
#define CLUSTER_SPACE "shared"
#endif

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ u32 in_block(u32 at, int rank) {
  u32 there = at;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
#endif
  return there;
}
__device__ __forceinline__ u32 load_far_u32(u32 at) {
  u32 v;
  asm volatile("ld." CLUSTER_SPACE ".u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_far_u32x2(u32 at) {
  uint2 v;
  asm volatile("ld." CLUSTER_SPACE ".v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ void store_far_u32(u32 at, u32 v) {
  asm volatile("st." CLUSTER_SPACE ".u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
__device__ __forceinline__ void store_far_u32x2(u32 at, uint2 v) {
  asm volatile("st." CLUSTER_SPACE ".v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_far_f32(u32 at, float v) {
  asm volatile("st." CLUSTER_SPACE ".f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ void store_far_f32x2(u32 at, float x, float y) {
  asm volatile("st." CLUSTER_SPACE ".v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void store_far_f32x4(u32 at, float4 v) {
  asm volatile("st." CLUSTER_SPACE ".v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
#if __CUDA_ARCH__ >= 900
// These count their bytes on a barrier of the same block, whose waiters see them: no fence, no barrier of the cluster.
__device__ __forceinline__ void send_far_f32x2(u32 at, u32 barrier, float x, float y) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2, %3}, [%1];" ::"r"(at),
               "r"(barrier), "f"(x), "f"(y)
               : "memory");
}
__device__ __forceinline__ void send_far_u32x4(u32 at, u32 barrier, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(at),
               "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
#endif
__device__ __forceinline__ void store_far_u32x4(u32 at, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st." CLUSTER_SPACE ".v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
#endif
