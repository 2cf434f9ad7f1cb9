//! The coordinator's per-request tables. They stand outside the KV budget.
//!
//! ```text
//!  slots + 1 rows:  device slots i64 · host slots i64 (context + page) · top-k outputs i32 · raw indices i32
//!  × layers:        token i32 · location i32 (padded buffer) · recency i16 (buffer)
//!  speculation:     scratch rows, a hash index over twice the buffer, policy state
//! ```

use crate::limits::{DRAFT_TOKENS, MIN_DRAFT_TOP_K};

/// Why the coordinator refuses to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The buffer is no multiple of the page: found only here.
    BufferNotWholePages,
    /// Draft depth outside 2 to 4, or a top-k below 1,024: found only here.
    DraftDepth,
    /// Numbers beyond 64 bits.
    Overflow,
}

/// Largest slot number that a signed 16-bit recency entry holds; a larger buffer wraps without a word.
pub const LARGEST_SLOT: u64 = 32_767;

/// Fewest scratch rows of a request under speculation.
const LEAST_SCRATCH_ROWS: u64 = 1_024;

/// What the tables are sized by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Layers.
    pub layers: u64,
    /// Requests at once.
    pub request_slots: u64,
    /// Longest context, in tokens.
    pub context_tokens: u64,
    /// `device_buffer_size`.
    pub buffer_rows: u64,
    /// `top_k`.
    pub top_k: u64,
    /// Tokens of a page.
    pub page_tokens: u64,
    /// Tokens verified per step under speculation; 0 without.
    pub draft_tokens: u64,
}

/// Bytes and sizes of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// Rows of a request's buffer with its extra page.
    pub padded_rows: u64,
    /// GPU bytes of the tables.
    pub gpu_bytes: u64,
    /// GPU bytes that speculation adds.
    pub spec_gpu_bytes: u64,
    /// Scratch rows of a request under speculation.
    pub scratch_rows: u64,
    /// Whether every recency entry holds its slot's number.
    pub recency_is_correct: bool,
}

impl Tables {
    /// The tables of this setting.
    ///
    /// # Errors
    /// What the coordinator refuses.
    pub fn new(setting: &Setting) -> Result<Self, Refusal> {
        let drafts = setting.draft_tokens;
        if drafts > 0 && (!DRAFT_TOKENS.contains(&drafts) || setting.top_k < MIN_DRAFT_TOP_K) {
            return Err(Refusal::DraftDepth);
        }
        if setting.page_tokens == 0 || !setting.buffer_rows.is_multiple_of(setting.page_tokens) {
            return Err(Refusal::BufferNotWholePages);
        }
        Self::counted(setting).ok_or(Refusal::Overflow)
    }

    fn counted(setting: &Setting) -> Option<Self> {
        let slots = setting.request_slots.checked_add(1)?;
        let padded = setting.buffer_rows.checked_add(setting.page_tokens)?;
        let per_slot = padded
            .checked_mul(8)?
            .checked_add(setting.context_tokens.checked_add(setting.page_tokens)?.checked_mul(8)?)?
            .checked_add(setting.top_k.checked_mul(4 + 4)?)?;
        let per_layer_slot = padded.checked_mul(4 + 4)?.checked_add(setting.buffer_rows.checked_mul(2)?)?;
        let once = setting.buffer_rows.checked_mul(2 + 4)?.checked_add(4)?;
        let layered = setting.layers.checked_mul(slots)?.checked_mul(per_layer_slot)?;
        let scratch_rows = Self::scratch_rows(setting)?;
        Some(Self {
            padded_rows: padded,
            gpu_bytes: slots.checked_mul(per_slot)?.checked_add(layered)?.checked_add(once)?,
            spec_gpu_bytes: Self::spec_bytes(setting, slots, scratch_rows)?,
            scratch_rows,
            recency_is_correct: setting.buffer_rows <= LARGEST_SLOT + 1,
        })
    }

    fn scratch_rows(setting: &Setting) -> Option<u64> {
        if setting.draft_tokens == 0 {
            return Some(0);
        }
        let picks = setting.draft_tokens.checked_mul(setting.top_k)?;
        Some(picks.saturating_sub(setting.buffer_rows).max(LEAST_SCRATCH_ROWS))
    }

    fn spec_bytes(setting: &Setting, slots: u64, scratch_rows: u64) -> Option<u64> {
        if setting.draft_tokens == 0 {
            return Some(0);
        }
        let buffer = setting.buffer_rows;
        let picks = setting.draft_tokens.checked_mul(setting.top_k)?;
        let hash_entries = buffer.checked_mul(2)?.checked_next_power_of_two()?;
        let layered = setting.layers.checked_mul(slots)?;
        let scratch_map = layered.checked_mul(scratch_rows)?.checked_mul(4)?;
        let outputs = slots.checked_mul(picks)?.checked_mul(4)?;
        let cache_index = layered.checked_mul(2)?.checked_mul(hash_entries)?.checked_mul(8)?;
        let policy = setting.layers.checked_mul(slots.checked_add(1)?)?.checked_mul(buffer)?.checked_mul(4)?;
        let state = slots.checked_add(1)?.checked_mul(picks)?.checked_mul(5 * 4)?;
        let hash = buffer.checked_mul(8 + 8)?;
        [scratch_map, outputs, cache_index, policy, state, hash]
            .iter()
            .try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes))
    }

    /// Rows that speculation sets aside for a request that holds `tokens`: what it may still grow by, and its scratch.
    pub fn slot_reserve(&self, tokens: u64, page_tokens: u64) -> u64 {
        if self.scratch_rows == 0 {
            return 0;
        }
        let held = tokens.div_ceil(page_tokens).saturating_mul(page_tokens).min(self.padded_rows);
        self.padded_rows - held + self.scratch_rows
    }
}
