// New index keys into their pages: a warp a key, four numbers a lane.
//
//   scale = max(largest magnitude, 1e-4) / 448        e4m3 = number / scale, rounded to nearest even
#include "common.cuh"

constexpr int WIDTH = 128, SCALES_AT = PAGE * WIDTH;
constexpr float E4M3_LARGEST = 448.f, SMALLEST_AMAX = 1e-4f;

__device__ __forceinline__ float4 load_numbers(const u8* from) {
  if (VALUE_BYTES == 4) return __ldg((const float4*)from + lane_id());
  const uint2 pair = __ldg((const uint2*)from + lane_id());
  return make_float4(__uint_as_float(pair.x << 16), __uint_as_float(pair.x & 0xFFFF0000u), __uint_as_float(pair.y << 16),
                     __uint_as_float(pair.y & 0xFFFF0000u));
}
__device__ __forceinline__ u32 pack_e4m3(float x, float y) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(pair) : "f"(x), "f"(y));
  return pair;
}

__device__ __forceinline__ void store_key(const u8* from, u8* page, int slot) {
  const float4 v = load_numbers(from);
  const float mine = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
  const float largest = __uint_as_float(__reduce_max_sync(ALL_LANES, __float_as_uint(mine)));
  const float scale = fmaxf(largest, SMALLEST_AMAX) / E4M3_LARGEST;
  ((u32*)(page + slot * WIDTH))[lane_id()] = pack_e4m3(v.x / scale, v.y / scale) | pack_e4m3(v.z / scale, v.w / scale) << 16;
  if (lane_id() == 0) ((float*)(page + SCALES_AT))[slot] = scale;
}

// The last `rows` tokens of each request.
extern "C" __global__ void __launch_bounds__(THREADS)
    append_keys(const u8* values, u8* keys, const int* page_map, const int* seats_of, const i64* lengths, int batch,
                int rows, int seats, int context, int map_pages, int key_pages, i64 key_pitch) {
  const int item = blockIdx.x * (THREADS / WARP) + warp_id();
  if (item >= batch * rows) return;
  const int seat = __ldg(seats_of + item / rows);
  if ((u32)seat >= (u32)seats) return;
  const i64 token = min(__ldg(lengths + seat), (i64)context) - rows + item % rows;
  if (token < 0) return;
  const int page = __ldg(page_map + (i64)seat * map_pages + token / PAGE);
  if ((u32)page >= (u32)key_pages) return;
  store_key(values + (i64)item * WIDTH * VALUE_BYTES, keys + page * key_pitch, token % PAGE);
}

// Consecutive tokens of one request.
extern "C" __global__ void __launch_bounds__(THREADS)
    write_keys(const u8* values, u8* keys, const int* pages, int tokens, i64 first_token, int key_pages, i64 key_pitch) {
  for (i64 item = (i64)blockIdx.x * (THREADS / WARP) + warp_id(); item < tokens; item += (i64)gridDim.x * (THREADS / WARP)) {
    const i64 token = first_token + item;
    const int page = __ldg(pages + token / PAGE);
    if ((u32)page >= (u32)key_pages) continue;
    store_key(values + item * WIDTH * VALUE_BYTES, keys + page * key_pitch, token % PAGE);
  }
}
