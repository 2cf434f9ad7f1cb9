//! A request's device buffer: how it starts, how it grows, and how growth fails.
//!
//! ```text
//!  admitted   ⌈len⌉ to a page; the padded buffer once that reaches `device_buffer_size`
//!  grown to   ≤ buffer: ⌈len⌉, or padded       > buffer while smaller: no growth at all, the newest token has no slot
//! ```

/// Sizes of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// `device_buffer_size`.
    pub buffer_rows: u64,
    /// Tokens of a page.
    pub page_tokens: u64,
}

/// A request's buffer after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Device slots it holds.
    pub slots: u64,
    /// Column of the newest token in its table; `None` where it has no slot and reads as slot 0.
    pub newest_column: Option<u64>,
}

impl Setting {
    /// The buffer and its extra page.
    pub const fn padded_rows(&self) -> u64 {
        self.buffer_rows.saturating_add(self.page_tokens)
    }

    /// Slots that a request of `tokens` starts with.
    pub const fn at_admission(&self, tokens: u64) -> u64 {
        let pages = tokens.div_ceil(self.page_tokens).saturating_mul(self.page_tokens);
        if pages >= self.buffer_rows { self.padded_rows() } else { pages }
    }

    /// The buffer of a request admitted with `admitted` tokens that jumps to `tokens`.
    pub const fn grown(&self, admitted: u64, tokens: u64) -> Grown {
        let held = self.at_admission(admitted);
        if tokens > self.buffer_rows && held < self.padded_rows() {
            return Grown { slots: held, newest_column: None };
        }
        let wanted = if tokens > held { self.at_admission(tokens) } else { held };
        let newest = tokens.saturating_sub(1);
        let column = if newest < self.buffer_rows { newest } else { self.buffer_rows };
        Grown { slots: wanted, newest_column: Some(column) }
    }

    /// Device slots left once `requests` of `admitted` tokens are in, if they all fit.
    pub fn left_after(&self, device_tokens: u64, requests: u64, admitted: u64) -> Option<u64> {
        device_tokens.checked_sub(requests.checked_mul(self.at_admission(admitted))?)
    }

    /// Whether all of them can grow to `tokens` at once. Where not, the engine's process ends with `RuntimeError`:
    /// growth was never reserved.
    pub fn growth_fits(&self, device_tokens: u64, requests: u64, admitted: u64, tokens: u64) -> bool {
        let more = self.grown(admitted, tokens).slots - self.at_admission(admitted);
        self.left_after(device_tokens, requests, admitted)
            .zip(requests.checked_mul(more))
            .is_some_and(|(left, more)| more <= left)
    }
}
