//! The pools of a DSA model once `N` is known: what is allocated, what is available, what is mapped.
//!
//! ```text
//!  logical   N × r tokens          indexer ⌊(N × r + page) ÷ page⌋ pages
//!  device    N tokens + a page     host    ⌊N × r⌋ to a page, + a page (which requests can be handed)
//!  mapping   int64 × (N × r + page + 1), outside the budget
//! ```

/// Why the engine fails to build its pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// A ratio that is no Python integer makes a tensor size a float: `TypeError`, after sizing has passed.
    FractionalRatio,
    /// A negative ratio makes a tensor size negative: `RuntimeError`.
    NegativeRatio,
    /// Numbers beyond 64 bits.
    Overflow,
}

/// What the pools are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers.
    pub layers: u64,
    /// Bytes of a row of main KV.
    pub row_bytes: u64,
    /// Bytes of an indexer key.
    pub indexer_bytes: u64,
    /// Tokens of a page.
    pub page_tokens: u64,
}

/// The pools. Tokens and bytes as the engine's own attributes have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// `size` and `size_full`: logical tokens.
    pub logical_tokens: u64,
    /// Tokens of the logical allocator: whole pages.
    pub logical_available: u64,
    /// Tokens of the device allocator: whole pages.
    pub device_available: u64,
    /// Entries of the logical → device mapping.
    pub mapping_entries: u64,
    /// Its bytes.
    pub mapping_bytes: u64,
    /// Bytes of main KV on the GPU.
    pub device_kv_bytes: u64,
    /// Bytes of indexer keys on the GPU.
    pub device_index_bytes: u64,
    /// Tokens of the host pool, its pad page included.
    pub host_tokens: u64,
    /// Bytes of the host pool.
    pub host_bytes: u64,
}

impl Capacity {
    /// What one allocation can get: the tighter of the two allocators.
    pub fn available(&self) -> u64 {
        self.logical_available.min(self.device_available)
    }

    /// The pools of `device_tokens` at `ratio`, which the engine would see as a float unless `ratio_is_int`.
    ///
    /// # Errors
    /// What the engine fails with while it builds them.
    pub fn new(shape: Shape, device_tokens: u64, ratio: f64, ratio_is_int: bool) -> Result<Self, BuildError> {
        if !ratio_is_int {
            return Err(BuildError::FractionalRatio);
        }
        if ratio < 0.0 {
            return Err(BuildError::NegativeRatio);
        }
        let whole_ratio = crate::budget::vllm::floor_to_count(ratio);
        Self::counted(shape, device_tokens, whole_ratio).ok_or(BuildError::Overflow)
    }

    fn counted(shape: Shape, device_tokens: u64, ratio: u64) -> Option<Self> {
        let page = shape.page_tokens;
        let logical_tokens = device_tokens.checked_mul(ratio)?;
        let logical_available = logical_tokens / page * page;
        let mapping_entries = logical_tokens.checked_add(page)?.checked_add(1)?;
        let layer_row = shape.layers.checked_mul(shape.row_bytes)?;
        let host_tokens = logical_available.checked_add(page)?;
        let index_pages = logical_tokens.checked_add(page)? / page;
        Some(Self {
            logical_tokens,
            logical_available,
            device_available: device_tokens / page * page,
            mapping_entries,
            mapping_bytes: mapping_entries.checked_mul(8)?,
            device_kv_bytes: device_tokens.checked_add(page)?.checked_mul(layer_row)?,
            device_index_bytes: index_pages
                .checked_mul(page)?
                .checked_mul(shape.indexer_bytes)?
                .checked_mul(shape.layers)?,
            host_tokens,
            host_bytes: host_tokens.checked_mul(layer_row)?,
        })
    }
}
