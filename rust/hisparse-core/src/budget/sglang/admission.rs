//! Which requests the engine takes, and which it holds up.
//!
//! ```text
//!  length limits     max_req_len = min(context, N) − 1        by N, although N × r tokens fit
//!  colocated prefill whole prompts in device *and* logical pages
//!  host slots        whole pages; the pad page can be handed out
//!  decode admission  seats = free device slots ÷ (buffer + page + scratch) − transfers      then tokens, first in, first out
//! ```

/// Reserve of input tokens below the length limit.
const INPUT_RESERVE: u64 = 5;

/// Lengths the engine works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthLimits {
    /// `max_token_pool_size`: logical tokens.
    pub max_token_pool_size: u64,
    /// `max_req_len`.
    pub max_req_len: u64,
    /// `max_req_input_len`; inputs of this length and longer are refused.
    pub max_req_input_len: u64,
    /// Tokens of the device pool, which clamps new tokens a second time.
    pub device_tokens: u64,
    /// Tokens of a page.
    pub page_tokens: u64,
}

impl LengthLimits {
    /// The limits of these pools.
    pub fn new(device_tokens: u64, logical_tokens: u64, context_tokens: u64, page_tokens: u64) -> Self {
        let max_req_len = device_tokens.min(context_tokens).saturating_sub(1);
        Self {
            max_token_pool_size: logical_tokens,
            max_req_len,
            max_req_input_len: max_req_len.saturating_sub(INPUT_RESERVE),
            device_tokens,
            page_tokens,
        }
    }

    /// Whether an input of this length is refused at the door.
    pub const fn refuses_input(&self, input_tokens: u64) -> bool {
        input_tokens >= self.max_req_input_len
    }

    /// New tokens granted: what is left of the length limit, and of the device pool after whole pages of input and one
    /// page more.
    pub fn granted_new_tokens(&self, input_tokens: u64, max_new_tokens: u64) -> u64 {
        let by_length = self.max_req_len.saturating_sub(input_tokens).saturating_sub(1);
        let held = whole_pages(input_tokens, self.page_tokens).saturating_add(self.page_tokens);
        let by_pool = self.device_tokens.saturating_sub(held).saturating_sub(1);
        max_new_tokens.min(by_length).min(by_pool)
    }

    /// Whether the decode side refuses the request at once.
    pub const fn prealloc_refuses(&self, input_tokens: u64) -> bool {
        input_tokens > self.max_token_pool_size
    }
}

/// Tokens free in the two allocators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Logical tokens.
    pub logical: u64,
    /// Device tokens.
    pub device: u64,
}

/// Prompts prefilled on the same engine, one after another: whether each fits, and what is left.
pub fn colocated_prefill(mut free: Free, page_tokens: u64, prompts: &[u64]) -> (Vec<bool>, Free) {
    let fits = prompts
        .iter()
        .map(|tokens| {
            let held = whole_pages(*tokens, page_tokens);
            let fits = held <= free.logical.min(free.device);
            if fits {
                free = Free { logical: free.logical - held, device: free.device - held };
            }
            fits
        })
        .collect();
    (fits, free)
}

/// Host slots held by requests of these lengths, the request that finds none, and what is left.
pub fn host_slots(host_tokens: u64, page_tokens: u64, requests: &[u64]) -> (Vec<u64>, Option<usize>, u64) {
    let mut left = host_tokens;
    let mut held = Vec::with_capacity(requests.len());
    for (index, tokens) in requests.iter().enumerate() {
        let wanted = whole_pages(*tokens, page_tokens);
        if wanted > left {
            return (held, Some(index), left);
        }
        left -= wanted;
        held.push(wanted);
    }
    (held, None, left)
}

/// State of the decode side before it admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeQueue {
    /// Tokens free.
    pub free: Free,
    /// Buffer, its extra page, and scratch rows under speculation.
    pub slots_per_request: u64,
    /// Requests whose transfer is under way.
    pub in_transfer: u64,
    /// `num_reserved_decode_tokens`.
    pub reserved_decode_tokens: u64,
    /// Free entries for transfer metadata.
    pub metadata_slots: u64,
    /// Free request slots.
    pub request_slots: u64,
    /// Tokens of a page.
    pub page_tokens: u64,
}

impl DecodeQueue {
    /// Requests admitted of a queue with these input lengths. The first that does not fit holds up all behind it.
    pub fn admits(&self, inputs: &[u64], max_new_tokens: u64) -> u64 {
        let seats = (self.free.device / self.slots_per_request.max(1)).saturating_sub(self.in_transfer);
        let mut slots = seats.min(self.metadata_slots).min(self.request_slots);
        let reserved = self.reserved_decode_tokens.saturating_mul(self.in_transfer);
        let mut budget = self.free.logical.saturating_sub(reserved);
        let mut logical = self.free.logical;
        let mut admitted = 0;
        for input in inputs {
            let needed = input.saturating_add(self.reserved_decode_tokens);
            let held = whole_pages(*input, self.page_tokens);
            if slots == 0 || needed.max(input.saturating_add(max_new_tokens)) > budget || held > logical {
                break;
            }
            slots -= 1;
            budget -= needed;
            logical -= held;
            admitted += 1;
        }
        admitted
    }
}

/// Tokens rounded up to whole pages.
pub const fn whole_pages(tokens: u64, page_tokens: u64) -> u64 {
    tokens.div_ceil(page_tokens).saturating_mul(page_tokens)
}
