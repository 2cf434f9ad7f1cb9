//! What one request would take of a node, as far as a router can know.

use crate::ledger::{Amounts, Pool};
use crate::limits::PAGE_TOKENS;
use crate::pages::PageHash;
use crate::units::Tokens;

/// One request. What a model's sliding window takes is the node's to say: its largest grant counts it in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Its whole length: prompt, generated and new tokens.
    pub tokens: u64,
    /// Content hashes of its full pages, from the first one on; chained, so one stands for all before it.
    pub prefix: Vec<PageHash>,
}

impl Demand {
    /// A request of a length, with no prefix.
    pub const fn of_tokens(tokens: u64) -> Self {
        Self { tokens, prefix: Vec::new() }
    }

    /// A request of so many pages, with no prefix.
    pub const fn of_pages(pages: u64) -> Self {
        Self::of_tokens(pages.saturating_mul(PAGE_TOKENS))
    }

    /// Host pages of the whole length.
    pub const fn pages(&self) -> u64 {
        Tokens::new(self.tokens).to_pages(PAGE_TOKENS).get()
    }

    /// What it takes of each pool where `shared_pages` of its prefix are there already.
    pub fn amounts(&self, shared_pages: u64) -> Amounts {
        let pages = self.pages();
        let mut amounts = Amounts::ZERO;
        amounts[Pool::HostPages] = pages.saturating_sub(shared_pages);
        amounts[Pool::Seats] = 1;
        amounts[Pool::IndexerTokens] = pages.saturating_mul(PAGE_TOKENS);
        amounts[Pool::RequestSlots] = 1;
        amounts
    }
}
