// The state of one seat in one group of layers: its hot slots from least to most recently used, one word each.
//
//   word = slot << TOKEN_BITS | token          all ones in token: empty slot
//
// Mirrors words.py. WORD_BITS is 32 where slot and token fit, else 64.
#pragma once
#include "common.cuh"

#if WORD_BITS == 64
typedef u64 word;
#else
typedef u32 word;
#endif

constexpr u32 EMPTY_TOKEN = TOKEN_BITS == 32 ? 0xFFFFFFFFu : (1u << (TOKEN_BITS % 32)) - 1;

__device__ __forceinline__ u32 token_of(word w) { return (u32)w & EMPTY_TOKEN; }
__device__ __forceinline__ u32 slot_of(word w) { return (u32)(w >> TOKEN_BITS); }
__device__ __forceinline__ word pack(u32 slot, u32 token) { return (word)slot << TOKEN_BITS | token; }

// No slot: slots are below 2^15, and -1 - first_row never is this.
constexpr u32 UNRESOLVED = 0x80000000u;

// The token whose number means "empty" is always served from the newest page.
constexpr int LAST_START = EMPTY_TOKEN < 0x7FFFFFFF ? (int)EMPTY_TOKEN : 0x7FFFFFFF;

// Where one request stands.
struct Request {
  int seat;
  u32 length;         // tokens, this step's included
  u32 looked_up;      // tokens below this are looked up; the newest page serves the others
  int first_row;      // of its seat

  __device__ __forceinline__ void load(int seat_, const i64* lengths, const int* newest_from) {
    seat = seat_;
    const i64 stored = __ldg(lengths + seat);
    const int tokens = (int)(stored < CONTEXT ? stored : CONTEXT);
    length = max(tokens, 0);
    looked_up = min((int)length, min(max(tokens - NEWEST_TOKENS, __ldg(newest_from + seat)), LAST_START));
    first_row = seat * PADDED;
  }

  // The slot of a pick that is not looked up: in the newest page, or what makes the row -1 where it is no token of
  // the request.
  __device__ __forceinline__ u32 other_slot(int pick) const {
    return (u32)pick < length ? HOT + (u32)pick % PAGE : (u32)(-1 - first_row);
  }
};
