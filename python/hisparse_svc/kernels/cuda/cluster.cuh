// Blocks that work as one: a cluster's barrier, and what its blocks read and write in each other's shared memory.
//
//   PARTS blocks, one cluster (sm_90 and newer)      [ block 0 │ block 1 │ ... ]      `part` is the block's number in it
//
// Where there are no clusters, only PARTS == 1 may use these.
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 900
constexpr bool ONE_BODY = true;
#define IN_CLUSTERS __cluster_dims__(PARTS, 1, 1)
#else
constexpr bool ONE_BODY = PARTS == 1;
#define IN_CLUSTERS
#endif

// Every thread of every block arrives; what was written to shared memory before is seen behind it.
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  if (PARTS > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

// Where `mine`, in this block's shared memory, lies in the same array of block `part`.
__device__ __forceinline__ u32 in_block(const void* mine, int part) {
  u32 address = (u32)__cvta_generic_to_shared(mine);
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(part));
  return address;
#else
  return address;
#endif
}

#if __CUDA_ARCH__ >= 900
#define CLUSTER_SPACE "shared::cluster"
#else
#define CLUSTER_SPACE "shared"
#endif

__device__ __forceinline__ u32 read_in_block(const u32* mine, int part) {
  u32 value;
  asm volatile("ld." CLUSTER_SPACE ".u32 %0, [%1];" : "=r"(value) : "r"(in_block(mine, part)) : "memory");
  return value;
}
__device__ __forceinline__ void write_in_block(u32* mine, int part, u32 value) {
  asm volatile("st." CLUSTER_SPACE ".u32 [%0], %1;" ::"r"(in_block(mine, part)), "r"(value) : "memory");
}
__device__ __forceinline__ void write_in_block(uint2* mine, int part, uint2 value) {
  asm volatile("st." CLUSTER_SPACE ".v2.u32 [%0], {%1, %2};" ::"r"(in_block(mine, part)), "r"(value.x), "r"(value.y)
               : "memory");
}
