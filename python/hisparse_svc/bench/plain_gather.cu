// The yardstick: rows in address order, one warp a row, nothing else. `order` lists row numbers, sorted.
extern "C" __global__ void __launch_bounds__(1024)
plain_gather(const unsigned char* host, uint4* hot, const long long* order, const int* hot_row, int rows, int row_chunks,
             int pitch_bytes) {
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  const int lane = threadIdx.x % 32;
  for (int r = warp; r < rows; r += warps) {
    const uint4* from = (const uint4*)(host + order[r] * pitch_bytes);
    uint4* to = hot + (long long)hot_row[r] * row_chunks;
    uint4 v[3];
#pragma unroll
    for (int k = 0; k < 3; k++)
      if (lane + 32 * k < row_chunks)
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[k].x), "=r"(v[k].y), "=r"(v[k].z), "=r"(v[k].w)
                     : "l"(from + lane + 32 * k));
#pragma unroll
    for (int k = 0; k < 3; k++)
      if (lane + 32 * k < row_chunks) to[lane + 32 * k] = v[k];
  }
}
