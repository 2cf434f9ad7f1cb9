// What the kernels of this folder share: names, words, and sums over a block.
//
// Shapes are compile-time constants, given by -D (see launch.py); row arithmetic is 64-bit throughout.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr u32 ALL_LANES = 0xFFFFFFFFu;
constexpr int WARP = 32;

__device__ __forceinline__ int lane_id() { return threadIdx.x % WARP; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / WARP; }
__device__ __forceinline__ u32 lanes_below() {
  u32 mask;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}

// Sum over lower lanes and this one. The shuffle's own predicate guards the addition.
__device__ __forceinline__ u32 inclusive_sum(u32 x) {
#pragma unroll
  for (int distance = 1; distance < WARP; distance *= 2)
    asm volatile(
        "{ .reg .u32 y; .reg .pred from_below; shfl.sync.up.b32 y|from_below, %0, %1, 0, 0xffffffff;"
        " @from_below add.u32 %0, %0, y; }"
        : "+r"(x)
        : "r"(distance));
  return x;
}

// Two kernels of a stream side by side, on sm_90 and newer: the first lets the second start as soon as all its blocks run,
// and the second, launched so that it may, waits for all that the first does and writes. What it then reads of that is
// read by plain loads: the compiler may take read-only ones (__ldg) to in front of the wait.
__device__ __forceinline__ void next_kernel_may_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Tells the compiler that a pointer is global memory, and hides how it was computed, so that each access is one
// instruction with a 32-bit index.
template <typename T>
__device__ __forceinline__ T* global_pointer(T* pointer) {
  asm volatile("" : "+l"(pointer));
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}
