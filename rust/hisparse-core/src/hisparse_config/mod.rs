//! The `--hisparse-config` text that SGLang users already have, read twice.
//!
//! ```text
//!             ┌─► HisparseConfig::read   what this project accepts: every value checked, every key known
//!  text ─► json
//!             └─► upstream::read         what SGLang 0.5.23 makes of the same text, oversights included
//! ```
//! The difference between the two is what a plan for SGLang warns about.

mod json;
pub mod upstream;

pub use json::FIELD;
pub(crate) use json::{object, python_numbers};

use serde_json::{Map, Value};

use crate::error::Problems;
use crate::input::Fields;
use crate::limits::{
    BLOCK_THREADS_STEP, CONFIG_RATIO, DEFAULT_RATIO, DEFAULT_TOP_K, MAX_BLOCK_THREADS, MAX_HOT_ROWS, MAX_RATIO,
    MIN_BLOCK_THREADS, PAGE_TOKENS,
};
use crate::ratio::Ratio;

/// The keys HiSparse acts on.
pub const KEYS: [&str; 4] = ["top_k", "device_buffer_size", "host_to_device_ratio", "swap_in_block_size"];

/// Keys of SGLang's wider sparsity framework, which HiSparse reads and ignores.
const FRAMEWORK_KEYS: [&str; 4] = ["algorithm", "backend", "min_sparse_prompt_len", "page_size"];

/// The configuration after every check; a value that was refused is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HisparseConfig {
    /// Tokens attended per step: the model's, else the text's, else the default.
    pub top_k: Option<u64>,
    /// Hot rows per request.
    pub hot_rows: Option<u64>,
    /// Host-to-device ratio.
    pub ratio: Option<Ratio>,
    /// Threads of one swap-in block, where given.
    pub block_threads: Option<u64>,
}

/// What the values are checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Against {
    /// The model's real top-k, where a model is known.
    pub model_top_k: Option<u64>,
    /// Picks of a query row beside the top-k ([`crate::model::Model::tail_picks`]).
    pub tail_picks: u64,
    /// Tokens of one request that are verified in one step: 1 without drafts.
    pub query_tokens: u64,
}

impl Against {
    /// No model, no drafts.
    pub const NOTHING: Self = Self { model_top_k: None, tail_picks: 0, query_tokens: 1 };
}

/// Hot rows where none are given: one top-k for each query token and one to spare, in whole pages. Picks beside the top-k
/// take of the spare one: a few rows more would double the slots that a word of the hot cache must name.
pub const fn default_hot_rows(top_k: u64, tail_picks: u64, query_tokens: u64) -> u64 {
    let spare = top_k.saturating_mul(query_tokens.saturating_add(1));
    let least = step_picks(top_k.saturating_add(tail_picks), query_tokens);
    let rows = if spare < least { least } else { spare };
    let paged = rows.div_ceil(PAGE_TOKENS).saturating_mul(PAGE_TOKENS);
    if paged > MAX_HOT_ROWS { MAX_HOT_ROWS } else { paged }
}

/// Rows that one step picks at most, which a hot buffer must hold at once: `picks_per_row` for each query token.
pub const fn step_picks(picks_per_row: u64, query_tokens: u64) -> u64 {
    picks_per_row.saturating_mul(query_tokens)
}

impl HisparseConfig {
    /// Reads and checks `text`. No text stands for this project's defaults; a text that leaves a key out keeps the
    /// default that SGLang documents for it.
    pub fn read(text: Option<&str>, against: Against) -> (Self, Problems) {
        let Some(text) = text else {
            let (config, problems) = Self::check(&Map::new(), against);
            return (Self { ratio: Ratio::whole(DEFAULT_RATIO), ..config }, problems);
        };
        match object(text) {
            Ok(object) => Self::check(&object, against),
            Err(problem) => {
                let nothing = Self { top_k: against.model_top_k, hot_rows: None, ratio: None, block_threads: None };
                (nothing, Problems::one(problem))
            }
        }
    }

    fn check(object: &Map<String, Value>, against: Against) -> (Self, Problems) {
        let mut reader = Reader { object, fields: Fields::new(object, FIELD) };
        let mut known = KEYS.to_vec();
        for name in FRAMEWORK_KEYS.into_iter().filter(|name| object.contains_key(*name)) {
            known.push(name);
            reader.fields.problem(
                name,
                "is a key of SGLang's sparsity framework that HiSparse ignores",
                "leave it out",
            );
        }
        reader.fields.only(&known);
        let top_k = reader.top_k(against.model_top_k);
        let config = Self {
            top_k,
            hot_rows: reader.hot_rows(top_k, against),
            ratio: reader.ratio(),
            block_threads: reader.block_threads(),
        };
        let mut problems = Problems::new();
        for mut problem in reader.fields.finish() {
            problem.value = json::as_written(&problem.value);
            problems.push(problem);
        }
        (config, problems)
    }
}

/// The four values, one method each.
struct Reader<'a> {
    object: &'a Map<String, Value>,
    fields: Fields<'a>,
}

impl Reader<'_> {
    /// A plain integer, or a problem with `rule`; `None` where absent too. Unlike elsewhere `2048.0` and `null` are
    /// refused: the engines take the first for a float and the second for a value.
    fn integer(&mut self, name: &str, rule: &str, remedy: &str, fits: impl Fn(u64) -> bool) -> Option<u64> {
        let value = self.object.get(name)?;
        let found = value.as_u64().filter(|number| fits(*number));
        if found.is_none() {
            self.fields.problem(name, rule, remedy);
        }
        found
    }

    /// The model's top-k decides; the text may repeat it.
    fn top_k(&mut self, of_model: Option<u64>) -> Option<u64> {
        let absent = !self.object.contains_key("top_k");
        let rule = format!("must be a whole number from 1 to {MAX_HOT_ROWS}");
        let remedy = format!("give the model's index_topk, such as {DEFAULT_TOP_K}, or leave it out");
        let given = self.integer("top_k", &rule, &remedy, |top_k| (1..=MAX_HOT_ROWS).contains(&top_k));
        let Some(real) = of_model else {
            return if absent { Some(DEFAULT_TOP_K) } else { given };
        };
        if given.is_some_and(|given| given != real) {
            let rule = format!("must be the model's index_topk, {real}, since that is what its indexer picks");
            self.fields.problem("top_k", rule, format!("use {real}, or leave it out"));
        }
        Some(real)
    }

    fn hot_rows(&mut self, top_k: Option<u64>, against: Against) -> Option<u64> {
        const NAME: &str = "device_buffer_size";
        let Against { tail_picks, query_tokens, .. } = against;
        let least = top_k.map_or(1, |top_k| step_picks(top_k.saturating_add(tail_picks), query_tokens));
        if !self.object.contains_key(NAME) {
            let rows = default_hot_rows(top_k?, tail_picks, query_tokens);
            if rows < least {
                let rule =
                    format!("must hold the {least} rows that {query_tokens} query tokens pick, within {MAX_HOT_ROWS}");
                self.fields.problem(NAME, rule, "use fewer draft tokens");
                return None;
            }
            return Some(rows);
        }
        let rule = format!(
            "must be a whole number of rows up to {MAX_HOT_ROWS}, the last slot that 16-bit recency order can name"
        );
        let rows = self.integer(NAME, &rule, "give a multiple of 64 such as 4096", |rows| rows <= MAX_HOT_ROWS)?;
        let mut legal = true;
        if rows < least {
            let rule = format!("must be at least {least}, the rows that one step picks");
            self.fields.problem(NAME, rule, format!("use {} or more", least.next_multiple_of(PAGE_TOKENS)));
            legal = false;
        }
        if !rows.is_multiple_of(PAGE_TOKENS) {
            let below = rows - rows % PAGE_TOKENS;
            let above = below + PAGE_TOKENS;
            let remedy = if below < least { format!("use {above}") } else { format!("use {below} or {above}") };
            self.fields.problem(NAME, format!("must be a multiple of the page, {PAGE_TOKENS}"), remedy);
            legal = false;
        }
        legal.then_some(rows)
    }

    fn ratio(&mut self) -> Option<Ratio> {
        const NAME: &str = "host_to_device_ratio";
        let Some(value) = self.object.get(NAME) else { return Ratio::whole(CONFIG_RATIO) };
        let ratio = Ratio::from_json(value);
        if ratio.is_none() {
            let rule = format!("must be a finite number from 1 to {MAX_RATIO}, of at most six decimal places");
            self.fields.problem(NAME, rule, "use 1 or more, such as 2, 2.5 or 10, without quotes");
        }
        ratio
    }

    fn block_threads(&mut self) -> Option<u64> {
        let rule = format!(
            "must be a multiple of {BLOCK_THREADS_STEP} from {MIN_BLOCK_THREADS} to {MAX_BLOCK_THREADS}: smaller blocks \
             add stale counts in SGLang's swap-in scan and return wrong rows"
        );
        self.integer("swap_in_block_size", &rule, "use 960, or leave it out", |threads| {
            (MIN_BLOCK_THREADS..=MAX_BLOCK_THREADS).contains(&threads) && threads.is_multiple_of(BLOCK_THREADS_STEP)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, model_top_k: Option<u64>) -> (HisparseConfig, Vec<String>) {
        let (config, problems) = HisparseConfig::read(Some(text), Against { model_top_k, ..Against::NOTHING });
        (config, problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn no_text_means_the_defaults_and_they_follow_the_model() {
        let (config, problems) = HisparseConfig::read(None, Against { model_top_k: Some(512), ..Against::NOTHING });
        assert!(problems.is_empty(), "{problems}");
        assert_eq!((config.top_k, config.hot_rows, config.ratio), (Some(512), Some(1024), Ratio::whole(DEFAULT_RATIO)));
    }

    #[test]
    fn all_problems_come_back_together_each_with_its_path() {
        let (config, problems) = read(
            r#"{"top_k": 512, "device_buffer_size": 1000, "host_to_device_ratio": NaN, "swap_in_block_size": 256, "ratio": 2}"#,
            Some(2048),
        );
        assert_eq!(config, HisparseConfig { top_k: Some(2048), hot_rows: None, ratio: None, block_threads: None });
        let fields: Vec<_> = problems.iter().map(|text| text.split(':').next().unwrap_or_default()).collect();
        assert_eq!(
            fields,
            [
                "--hisparse-config.ratio is 2",
                "--hisparse-config.top_k is 512",
                "--hisparse-config.device_buffer_size is 1000",
                "--hisparse-config.device_buffer_size is 1000",
                "--hisparse-config.host_to_device_ratio is NaN",
                "--hisparse-config.swap_in_block_size is 256",
            ]
        );
    }

    #[test]
    fn a_misspelt_key_names_its_neighbour() {
        let (_, problems) = read(r#"{"device_buffer_sise": 6144}"#, None);
        assert_eq!(
            problems,
            ["--hisparse-config.device_buffer_sise is 6144: is not a known key; did you mean device_buffer_size?"]
        );
    }

    #[test]
    fn hot_rows_are_bounded_by_the_model_the_page_and_sixteen_bits() {
        for (rows, legal) in
            [("2048", true), ("32768", true), ("2047", false), ("1984", false), ("2100", false), ("32832", false)]
        {
            let (config, problems) = read(&format!(r#"{{"device_buffer_size": {rows}}}"#), Some(2048));
            assert_eq!((config.hot_rows.is_some(), problems.is_empty()), (legal, legal), "{rows}: {problems:?}");
        }
    }

    #[test]
    fn what_is_no_plain_number_is_refused() {
        for key in KEYS {
            for value in ["true", "\"2048\"", "NaN", "Infinity", "-Infinity", "[2048]", "{}", "null", "-1", "0"] {
                let (_, problems) = read(&format!("{{\"{key}\": {value}}}"), None);
                assert_eq!(problems.len(), 1, "{key} {value}: {problems:?}");
            }
        }
        for key in ["top_k", "device_buffer_size", "swap_in_block_size"] {
            let (_, problems) = read(&format!("{{\"{key}\": 960.0}}"), None);
            assert_eq!(problems.len(), 1, "{key}: {problems:?}");
        }
    }

    #[test]
    fn a_tail_beside_the_top_k_needs_its_rows_too() {
        let read = |text, tail_picks, query_tokens| {
            HisparseConfig::read(text, Against { model_top_k: Some(2048), tail_picks, query_tokens }).0.hot_rows
        };
        let smallest = Some(r#"{"device_buffer_size": 2048}"#);
        assert_eq!((read(smallest, 0, 1), read(smallest, 3, 1)), (Some(2048), None));
        assert_eq!(read(Some(r#"{"device_buffer_size": 2112}"#), 3, 1), Some(2112));
        assert_eq!((read(None, 3, 1), default_hot_rows(4, 63, 2)), (Some(4096), 192));
    }

    #[test]
    fn drafts_need_a_top_k_of_rows_each() {
        let read = |text, query_tokens| {
            HisparseConfig::read(text, Against { model_top_k: Some(2048), tail_picks: 0, query_tokens }).0.hot_rows
        };
        assert_eq!(read(None, 4), Some(10_240));
        assert_eq!(read(Some(r#"{"device_buffer_size": 8192}"#), 4), Some(8192));
        assert_eq!(read(Some(r#"{"device_buffer_size": 4096}"#), 4), None);
        assert_eq!(read(None, 17), None);
    }
}
