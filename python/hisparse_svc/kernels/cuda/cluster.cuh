// Blocks that work as one: a cluster's barrier, and what its blocks read and write in each other's shared memory.
//
//   PARTS blocks, one cluster (sm_90 and newer)      [ block 0 │ block 1 │ ... ]      `part` is the block's number in it
//
// Where there are no clusters, only PARTS == 1 may use these.
#pragma once
#include "far.cuh"

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
    cluster_arrive();
    cluster_wait();
    return;
  }
#endif
  __syncthreads();
}

// `mine`, in this block's shared memory, names the same place of block `part`'s.
__device__ __forceinline__ u32 read_in_block(const u32* mine, int part) {
  return load_far_u32(in_block(shared_address(mine), part));
}
__device__ __forceinline__ void write_in_block(u32* mine, int part, u32 value) {
  store_far_u32(in_block(shared_address(mine), part), value);
}
__device__ __forceinline__ void write_in_block(uint2* mine, int part, uint2 value) {
  store_far_u32x2(in_block(shared_address(mine), part), value);
}
