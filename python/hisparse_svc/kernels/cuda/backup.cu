// New rows: into the newest page, and from there, or from a prefill's buffer, to host memory. One warp per token.
//
//   attention's KV write ── append ──> newest page ── backup ──> host rows         every step
//   prefill's KV of many tokens ─────── backup_pages ──────────> host rows         in bulk
#include "rows.cuh"

// This step's token `index % query_rows` of request `index / query_rows`; false where there is none.
__device__ __forceinline__ bool new_token(int index, int query_rows, const int* seats, int seat_count,
                                          const i64* lengths, int& seat, int& token) {
  seat = __ldg(seats + index / query_rows);
  if ((u32)seat >= (u32)seat_count) return false;
  const i64 length = __ldg(lengths + seat);
  token = (int)(length < CONTEXT ? length : CONTEXT) - query_rows + index % query_rows;
  return token >= 0;
}

__device__ __forceinline__ i64 newest_row(int seat, int token) { return (i64)seat * PADDED + HOT + token % PAGE; }

#define FOR_EACH_TOKEN(index, tokens)                                                                  \
  for (int index = blockIdx.x * (THREADS / WARP) + warp_id(); index < (tokens); index += gridDim.x * (THREADS / WARP))

// One layer: LAYERS is 1.
extern "C" __global__ void __launch_bounds__(THREADS)
append(const u8* __restrict__ rows, u8* hot, const int* __restrict__ seats, const i64* __restrict__ lengths, int batch,
       int query_rows, int seat_count, i64 request_pitch, i64 query_pitch) {
  FOR_EACH_TOKEN(index, batch * query_rows) {
    int seat, token;
    if (!new_token(index, query_rows, seats, seat_count, lengths, seat, token)) continue;
    const u8* from = rows + index / query_rows * request_pitch + index % query_rows * query_pitch;
    u8* to = hot + newest_row(seat, token) * HOT_PITCH;
    for (int c = lane_id(); c < CHUNKS; c += WARP)
      *(uint4*)(to + hot_offset(c, 0)) = *(const uint4*)(from + (i64)c * CHUNK_BYTES);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
backup(u8* host, const u8* __restrict__ hot, const int* __restrict__ seats, const i64* __restrict__ lengths,
       const int* __restrict__ page_map, int batch, int query_rows, int seat_count, int host_pages, i64 page_pitch,
       i64 row_pitch, i64 hot_layer_pitch) {
  FOR_EACH_TOKEN(index, batch * query_rows) {
    int seat, token;
    if (!new_token(index, query_rows, seats, seat_count, lengths, seat, token)) continue;
    const i64 to = host_row_offset(page_map, seat, token, host_pages, page_pitch, row_pitch);
    if (to < 0) continue;
    const u8* from = hot + newest_row(seat, token) * HOT_PITCH;
    for (int c = lane_id(); c < CHUNKS; c += WARP)
      *(uint4*)(host + to + host_offset(c)) = *(const uint4*)(from + hot_offset(c, hot_layer_pitch));
  }
}

// Rows of consecutive tokens of one request, LAYERS layers of them; HOT_PITCH is the buffer's pitch.
extern "C" __global__ void __launch_bounds__(THREADS)
backup_pages(u8* host, const u8* __restrict__ rows, const int* __restrict__ pages, int tokens, int first_token,
             int host_pages, i64 page_pitch, i64 row_pitch, i64 layer_pitch) {
  FOR_EACH_TOKEN(index, tokens) {
    const i64 to = host_row_offset(pages, 0, first_token + index, host_pages, page_pitch, row_pitch);
    if (to < 0) continue;
    const u8* from = rows + (i64)index * HOT_PITCH;
    for (int c = lane_id(); c < CHUNKS; c += WARP)
      *(uint4*)(host + to + host_offset(c)) = *(const uint4*)(from + hot_offset(c, layer_pitch));
  }
}
