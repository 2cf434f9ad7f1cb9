// Rows of a group of layers, and one warp that copies them.
//
//   host:  one token's rows of all layers      [ layer 0 │ layer 1 │ ... ]         HOST_LAYER_PITCH apart
//   hot:   each layer's rows in an array       [ row 0 │ row 1 │ ... ] [ ... ]     hot_layer_pitch apart, HOT_PITCH a row
//
// A warp moves 16 bytes a lane. CHUNKS counts them over LAYERS layers of ROW_BYTES bytes.
#pragma once
#include "common.cuh"

constexpr int CHUNK_BYTES = 16;
constexpr int ROW_CHUNKS = ROW_BYTES / CHUNK_BYTES;
constexpr int CHUNKS = LAYERS * ROW_CHUNKS;
constexpr int LOADS = (CHUNKS + WARP - 1) / WARP;

static_assert(ROW_BYTES % CHUNK_BYTES == 0, "rows are whole chunks");

// Where chunk `c` lies, from the first layer's row on.
__device__ __forceinline__ i64 host_offset(int c) {
  if (HOST_LAYER_PITCH == ROW_BYTES || LAYERS == 1) return (i64)c * CHUNK_BYTES;
  return (i64)(c / ROW_CHUNKS) * HOST_LAYER_PITCH + (i64)(c % ROW_CHUNKS) * CHUNK_BYTES;
}
__device__ __forceinline__ i64 hot_offset(int c, i64 hot_layer_pitch) {
  if (LAYERS == 1) return (i64)c * CHUNK_BYTES;
  return (c / ROW_CHUNKS) * hot_layer_pitch + (i64)(c % ROW_CHUNKS) * CHUNK_BYTES;
}

// Host memory is read once and by nobody else in this kernel: not coherent, not kept in L1.
__device__ __forceinline__ uint4 load_host(const u8* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Where the host row of `token` lies; negative where its seat has no page for it.
__device__ __forceinline__ i64 host_row_offset(const int* page_map, int seat, int token, int host_pages, i64 page_pitch,
                                               i64 row_pitch) {
  const int page = __ldg(page_map + (i64)seat * MAP_PAGES + token / PAGE);
  return (u32)page < (u32)host_pages ? page * page_pitch + (token % PAGE) * row_pitch : -1;
}
