//! What a caller asks for, and the length rule.
//!
//! ```text
//!  tokens = prompt + generated (a re-bootstrap's own output so far) + max new      pages = ceil(tokens ÷ page)
//! ```

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use super::lease::Epoch;
use crate::error::{Problem, Problems};
use crate::limits::{
    MAX_CONTEXT_TOKENS, MAX_POOL_PAGES, MAX_PREFIX_HASHES, MAX_PRIORITY, MAX_REQUEST_ID_BYTES, MAX_TENANT_BYTES,
    MAX_TTL, MIN_TTL,
};
use crate::pages::PageHash;
use crate::units::{Pages, Tokens};

/// Tenant of requests that name none.
pub const DEFAULT_TENANT: &str = "default";

/// The tenant of a request that says `name`.
pub const fn tenant_or_default(name: &str) -> &str {
    if name.is_empty() { DEFAULT_TENANT } else { name }
}

/// How long a request may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Length {
    /// In tokens.
    Tokens {
        /// Tokens of the prompt; at least 1.
        prompt: u64,
        /// Tokens already produced, where a request starts again on this node.
        generated: u64,
        /// Most tokens it may still produce.
        max_new: u64,
    },
    /// In pages; at least 1.
    Pages(u64),
}

/// A request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmitRequest {
    /// The caller's own name for it, unique within its tenant while the lease lives. Empty: no idempotency.
    pub request_id: Arc<str>,
    /// Whose quota and whose prefixes; empty means [`DEFAULT_TENANT`].
    pub tenant: Arc<str>,
    /// How long it may become.
    pub length: Length,
    /// Hashes of the prompt's full pages from the first on, keyed with the tenant's salt and chained.
    pub prefix_hashes: Vec<PageHash>,
    /// Place in the wait queue: higher goes first.
    pub priority: i32,
    /// Life of the lease without a commit; `None` for the node's default.
    pub ttl: Option<Duration>,
    /// Refuse unless the pool has this epoch; `None` for any.
    pub epoch: Option<Epoch>,
}

impl AdmitRequest {
    /// A request of the default tenant without prefix, for so many tokens.
    pub fn new(request_id: &str, prompt: u64, max_new: u64) -> Self {
        Self {
            request_id: request_id.into(),
            tenant: DEFAULT_TENANT.into(),
            length: Length::Tokens { prompt, generated: 0, max_new },
            prefix_hashes: Vec::new(),
            priority: 0,
            ttl: None,
            epoch: None,
        }
    }

    /// The tenant's name, the default's where none is given.
    pub fn tenant_name(&self) -> &str {
        tenant_or_default(&self.tenant)
    }

    /// Whole length in tokens, whatever a node can hold.
    ///
    /// # Errors
    /// Everything that is malformed: an empty prompt, a length beyond any node, names or priorities out of bounds,
    /// more hashes than full pages.
    pub fn checked_tokens(&self, page_tokens: u64) -> Result<Tokens, Problems> {
        let mut problems = Problems::new();
        let names = [
            name_problem("request_id", &self.request_id, MAX_REQUEST_ID_BYTES),
            name_problem("tenant", &self.tenant, MAX_TENANT_BYTES),
        ];
        names.into_iter().flatten().for_each(|problem| problems.push(problem));
        if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&self.priority) {
            let remedy = format!("give a number from -{MAX_PRIORITY} to {MAX_PRIORITY}");
            problems.push(Problem::new("priority", self.priority, "must be in range", remedy));
        }
        if let Some(problem) = self.ttl.and_then(|ttl| ttl_problem("ttl", ttl)) {
            problems.push(problem);
        }
        let (tokens, known_pages) = self.length_in_tokens(page_tokens, &mut problems);
        let most_hashes = known_pages.min(MAX_PREFIX_HASHES);
        if problems.is_empty() && self.prefix_hashes.len() as u64 > most_hashes {
            let rule = format!("must have at most one hash per full page, here {most_hashes}");
            problems.push(Problem::new("prefix_hashes", self.prefix_hashes.len(), rule, "leave out the partial page"));
        }
        problems.into_result(tokens)
    }

    /// The whole length, and the full pages whose content is known before decoding.
    fn length_in_tokens(&self, page_tokens: u64, problems: &mut Problems) -> (Tokens, u64) {
        let most = MAX_CONTEXT_TOKENS;
        match self.length {
            Length::Tokens { prompt, generated, max_new } => {
                for (field, count) in
                    [("prompt_tokens", prompt), ("generated_tokens", generated), ("max_new_tokens", max_new)]
                {
                    let least = u64::from(field == "prompt_tokens");
                    if !(least..=most).contains(&count) {
                        let remedy = format!("give a number from {least} to {most}");
                        problems.push(Problem::new(field, count, "must be a possible length", remedy));
                    }
                }
                // Each is at most 2^32 when there is no problem, so the sums are exact when they are used.
                let known = prompt.saturating_add(generated);
                (Tokens::new(known.saturating_add(max_new)), known / page_tokens)
            }
            Length::Pages(pages) => {
                if !(1..=MAX_POOL_PAGES).contains(&pages) {
                    let remedy = format!("give a number from 1 to {MAX_POOL_PAGES}");
                    problems.push(Problem::new("pages", pages, "must be a possible length", remedy));
                }
                (Pages::new(pages).to_tokens(page_tokens).unwrap_or_default(), pages)
            }
        }
    }

    /// A digest of every parameter, to tell a repeated request from a reused name. Pages' hashes are chained, so the
    /// last one stands for all.
    pub(super) fn digest(&self, hasher: &impl BuildHasher) -> u64 {
        let prefix = (self.prefix_hashes.len(), self.prefix_hashes.last());
        hasher.hash_one((self.length, prefix, self.priority, self.ttl))
    }
}

/// What is wrong with a caller's name for something, if anything. Names are shown in logs, tables and metrics, where a
/// control character would do harm.
pub(super) fn name_problem(field: &str, name: &str, most_bytes: u64) -> Option<Problem> {
    if name.len() as u64 > most_bytes {
        let rule = format!("must have at most {most_bytes} bytes");
        return Some(Problem::new(field, name.len(), rule, "use a shorter name"));
    }
    name.contains(char::is_control).then(|| {
        Problem::new(field, format!("{name:?}"), "must have no control characters", "use printable characters alone")
    })
}

/// What is wrong with a time to live, if anything.
pub(super) fn ttl_problem(field: &str, ttl: Duration) -> Option<Problem> {
    (!(MIN_TTL..=MAX_TTL).contains(&ttl)).then(|| {
        let remedy = format!("give a time from {MIN_TTL:?} to {MAX_TTL:?}");
        Problem::new(field, format!("{ttl:?}"), "must be in range", remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(length: Length) -> Result<Tokens, Problems> {
        AdmitRequest { length, ..AdmitRequest::new("r", 1, 1) }.checked_tokens(64)
    }

    #[test]
    fn a_re_bootstrap_counts_prompt_output_and_what_is_still_to_come() {
        let length = Length::Tokens { prompt: 1_000, generated: 250, max_new: 100 };
        assert_eq!(tokens(length), Ok(Tokens::new(1_350)));
        assert_eq!(tokens(Length::Pages(3)), Ok(Tokens::new(192)));
    }

    #[test]
    fn zero_and_two_to_the_63_tokens_are_malformed() {
        for prompt in [0, 1 << 63, u64::MAX] {
            let problems = tokens(Length::Tokens { prompt, generated: u64::MAX, max_new: u64::MAX }).unwrap_err();
            let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(fields, ["prompt_tokens", "generated_tokens", "max_new_tokens"], "{prompt}");
        }
        for pages in [0, MAX_POOL_PAGES + 1, u64::MAX] {
            assert!(tokens(Length::Pages(pages)).is_err(), "{pages}");
        }
    }

    #[test]
    fn a_hash_of_a_partial_page_is_refused() {
        let request = AdmitRequest { prefix_hashes: vec![[1; 32]; 2], ..AdmitRequest::new("r", 127, 64) };
        assert_eq!(request.checked_tokens(64).unwrap_err().iter().next().unwrap().field, "prefix_hashes");
        let request = AdmitRequest { prefix_hashes: vec![[1; 32]; 2], ..AdmitRequest::new("r", 128, 64) };
        assert!(request.checked_tokens(64).is_ok());
    }
}
