//! A Mooncake trace: one request per line, with its arrival, its lengths, and names of its 512-token blocks.
//!
//! ```text
//!  {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}
//!      ms, not falling      tokens, ≥ 1           tokens, ≥ 0         equal names: equal prefixes
//! ```

use serde_json::Value;

use crate::error::{Problem, Problems};
use crate::input::Fields;
use crate::limits::{MAX_CONTEXT_TOKENS, MAX_PREFIX_HASHES, MAX_TRACE_MS, MAX_TRACE_PROBLEMS};
use crate::pages::PageHash;

/// Tokens of one named block.
const BLOCK_TOKENS: u64 = 512;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Arrival, in milliseconds from the trace's origin.
    pub at_ms: u64,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens it produces.
    pub output_tokens: u64,
    /// Names of the prompt's blocks of 512 tokens, the last perhaps partial.
    pub blocks: Vec<u64>,
}

impl TraceRequest {
    /// One hash per full page of the prompt, as far as blocks are named. A block's name stands for its content and
    /// everything before it, so a page's hash is that name and its place in the block.
    pub fn page_hashes(&self, page_tokens: u64) -> Vec<PageHash> {
        let pages_per_block = (BLOCK_TOKENS / page_tokens).max(1);
        let full = self.input_tokens / page_tokens;
        let named = (self.blocks.len() as u64).saturating_mul(pages_per_block);
        let blocks = self.blocks.iter().flat_map(|block| (0..pages_per_block).map(move |page| (*block, page)));
        let hash = |(block, page): (u64, u64)| {
            let mut hash = PageHash::default();
            hash[..8].copy_from_slice(&block.to_le_bytes());
            hash[8..16].copy_from_slice(&page.to_le_bytes());
            hash
        };
        let count = full.min(named).min(MAX_PREFIX_HASHES);
        blocks.take(usize::try_from(count).unwrap_or(usize::MAX)).map(hash).collect()
    }
}

/// Reads a trace, one JSON object per line; empty lines are skipped.
///
/// # Errors
/// Every line that is broken, out of order or out of range, by its number; after
/// [`MAX_TRACE_PROBLEMS`] of them the rest goes unread.
pub fn parse(text: &str) -> Result<Vec<TraceRequest>, Problems> {
    let mut requests: Vec<TraceRequest> = Vec::new();
    let mut problems = Problems::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let earliest = requests.last().map_or(0, |request| request.at_ms);
        match parse_line(number, line, earliest) {
            Ok(request) => requests.push(request),
            Err(found) => problems.extend(found),
        }
        if problems.iter().len() >= MAX_TRACE_PROBLEMS {
            break;
        }
    }
    if problems.is_empty() && requests.is_empty() {
        problems.push(Problem::new("trace", "empty", "must hold at least one request", "give a Mooncake JSONL file"));
    }
    problems.into_result(requests)
}

fn parse_line(number: usize, line: &str, earliest: u64) -> Result<TraceRequest, Problems> {
    let path = format!("line {number}");
    let broken = |value: &str, rule: &str| {
        let start: String = value.chars().take(40).collect();
        Problems::one(Problem::new(path.clone(), start, rule, "mend or remove the line"))
    };
    let value: Value = serde_json::from_str(line).map_err(|error| broken(line, &format!("must be JSON: {error}")))?;
    let object = value.as_object().ok_or_else(|| broken(line, "must be a JSON object"))?;
    let mut fields = Fields::new(object, path.clone());
    let at_ms = fields.whole("timestamp", 0, MAX_TRACE_MS);
    if at_ms.is_none() && fields.raw("timestamp").is_none() {
        fields.problem("timestamp", "is required", "add it to the line");
    }
    let input_tokens = fields.required("input_length", MAX_CONTEXT_TOKENS);
    let output_tokens = fields.whole("output_length", 0, MAX_CONTEXT_TOKENS);
    if output_tokens.is_none() && fields.raw("output_length").is_none() {
        fields.problem("output_length", "is required", "add it to the line");
    }
    let mut blocks = Vec::new();
    for block in fields.list("hash_ids").unwrap_or_default() {
        if let Some(name) = block.as_u64() {
            blocks.push(name);
        } else {
            fields.problem("hash_ids", "must hold whole numbers from 0", "mend or remove the line");
            break;
        }
    }
    if at_ms.is_some_and(|at_ms| at_ms < earliest) {
        fields.problem(
            "timestamp",
            format!("must not be before the line above, {earliest}"),
            "sort the file by timestamp",
        );
    }
    fields.finish().into_result(())?;
    match (at_ms, input_tokens, output_tokens) {
        (Some(at_ms), Some(input_tokens), Some(output_tokens)) => {
            Ok(TraceRequest { at_ms, input_tokens, output_tokens, blocks })
        }
        _ => Err(broken(line, "must hold timestamp, input_length and output_length")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"timestamp": 5, "input_length": 700, "output_length": 3, "hash_ids": [0, 7]}"#;

    fn fields(text: &str) -> Vec<String> {
        parse(text).unwrap_err().into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn a_line_reads_as_a_request_with_hashes_for_its_full_pages() {
        let requests = parse(&format!("{GOOD}\n\n{GOOD}\n")).unwrap();
        assert_eq!(requests.len(), 2);
        let hashes = requests[0].page_hashes(64);
        assert_eq!(hashes.len(), 10, "700 tokens fill ten pages");
        assert_eq!((hashes[8][0], hashes[8][8]), (7, 0), "the ninth page opens the second block");
    }

    #[test]
    fn every_bad_line_is_named_by_its_number() {
        let text = [
            GOOD,
            "{broken",
            r#"{"timestamp": 4, "input_length": 1, "output_length": 1}"#,
            r#"{"timestamp": 6, "input_length": -3, "output_length": 1}"#,
            r#"{"timestamp": 6, "input_length": 3}"#,
            r#"{"timestamp": -6, "input_length": 3, "output_length": 1, "hash_ids": [-1]}"#,
            "[]",
        ]
        .join("\n");
        assert_eq!(
            fields(&text),
            [
                "line 2",
                "line 3.timestamp",
                "line 4.input_length",
                "line 5.output_length",
                "line 6.timestamp",
                "line 6.hash_ids",
                "line 7"
            ]
        );
    }

    #[test]
    fn an_empty_trace_is_refused_and_endless_problems_are_cut() {
        assert_eq!(fields("\n\n"), ["trace"]);
        assert_eq!(fields(&"x\n".repeat(1_000)).len(), MAX_TRACE_PROBLEMS);
    }
}
