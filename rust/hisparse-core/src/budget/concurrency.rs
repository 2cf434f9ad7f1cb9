//! The concurrency table: for each context, requests at once with and without the host pool, and what stops one more.

use crate::budget::plan::{Binding, Concurrency};
use crate::model::Model;

/// Contexts of the table where none are asked for: 8K to 1M, doubling, up to what the model was made for.
pub const CONTEXTS_TOKENS: [u64; 8] = [8_192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576];

/// Device memory without a host pool, in one unit throughout: bytes, or pages.
#[derive(Clone, Copy, Debug)]
pub struct Baseline {
    /// All of it.
    pub total: u64,
    /// What a page of KV takes.
    pub per_page: u64,
    /// What a request takes beside its pages: its sliding window.
    pub per_request: u64,
}

impl Baseline {
    /// Requests of so many pages that run at once.
    pub fn requests(&self, pages: u64) -> u64 {
        self.total / pages.saturating_mul(self.per_page).saturating_add(self.per_request).max(1)
    }
}

/// Pools that requests of one length share.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// What runs without a host pool.
    pub baseline: Baseline,
    /// Logical pages with it.
    pub logical_pages: u64,
    /// What holds those pages back: the host pool, or indexer keys on the GPU.
    pub logical_binding: Binding,
    /// Room for hot buffers.
    pub seats: u64,
    /// The engine's own limit.
    pub max_seqs: u64,
    /// Tokens of one page.
    pub page_tokens: u64,
    /// Host bytes of one page.
    pub host_page_bytes: u64,
    /// Longest request that the model's context allows, in tokens.
    pub context_tokens: u64,
    /// Longest request that these pools let through.
    pub max_req_len: u64,
    /// What stops a longer one within the model's context.
    pub length_binding: Binding,
}

impl Limits {
    /// The row of one context. A request longer than `max_req_len` never runs, whatever the pools hold.
    pub fn row(&self, context: u64) -> Concurrency {
        if context > self.max_req_len {
            return self.row_of(context, (0, self.length_binding));
        }
        let pages = self.pages(context);
        let runs = [
            (self.seats, Binding::Seats),
            (self.logical_pages / pages, self.logical_binding),
            (self.max_seqs, Binding::RequestSlots),
        ]
        .into_iter()
        .min_by_key(|(count, _)| *count)
        .unwrap_or((0, Binding::Seats));
        self.row_of(context, runs)
    }

    /// The row of one context for pools that run so many requests of it, with what stops one more.
    pub fn row_of(&self, context: u64, (hisparse, binding): (u64, Binding)) -> Concurrency {
        if context > self.context_tokens {
            return Concurrency { context, baseline: 0, hisparse: 0, host_bytes: 0, binding: Binding::Context };
        }
        let pages = self.pages(context);
        let baseline = self.baseline.requests(pages).min(self.max_seqs);
        let host_bytes =
            if hisparse > baseline { hisparse.saturating_mul(pages).saturating_mul(self.host_page_bytes) } else { 0 };
        Concurrency { context, baseline, hisparse, host_bytes, binding }
    }

    fn pages(&self, context: u64) -> u64 {
        context.div_ceil(self.page_tokens).max(1)
    }
}

/// The contexts asked for, else the usual ones that the model can have.
pub fn contexts<'a>(model: &Model, asked: &'a [u64]) -> std::borrow::Cow<'a, [u64]> {
    if !asked.is_empty() {
        return asked.into();
    }
    let longest = model.context_tokens.get();
    let usual: Vec<u64> = CONTEXTS_TOKENS.into_iter().filter(|context| *context <= longest).collect();
    if usual.is_empty() { vec![longest].into() } else { usual.into() }
}

/// What stops one more request in these rows, each limit once, in the order of the rows.
pub fn bindings(rows: &[Concurrency]) -> Vec<Binding> {
    let mut found = Vec::new();
    for row in rows {
        if !found.contains(&row.binding) {
            found.push(row.binding);
        }
    }
    found
}

/// What to say where the host pool brings nothing.
pub fn losing(rows: &[Concurrency]) -> Option<String> {
    let lost: Vec<&Concurrency> = rows.iter().filter(|row| row.hisparse < row.baseline).collect();
    let worst = lost.iter().max_by_key(|row| row.baseline - row.hisparse)?;
    let longest = lost.iter().map(|row| row.context).max()?;
    Some(format!(
        "This plan loses up to contexts of {longest} tokens: at {}, {} requests run with the host pool and {} without it.",
        worst.context, worst.hisparse, worst.baseline
    ))
}
