//! vLLM's two answers to "how many requests fit", which disagree: 16.5 and 40.0 for one GLM-5.2 node at 128K.
//!
//! ```text
//!  one request at max_model_len      indexer    resident         hot
//!    being admitted                  ⌈L/64⌉   + groups × ⌈min(L, in flight)/64⌉ + groups × ⌈B/64⌉
//!    decoding from the host          ⌈L/64⌉   + groups × 2 tail pages            + groups × ⌈B/64⌉
//!
//!  logged maximum = blocks / admitted            every request pays as if it were being admitted
//!  steady state   = 1 + (blocks − admitted) / decoding      one is being admitted, the others decode
//!  both ≤ host blocks / ⌈L/64⌉
//! ```

use serde::Serialize;

use super::{ACTIVE_TAIL_PAGES, to_f64};

/// Blocks that one request at the longest length takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Demand {
    /// GPU blocks while it is being admitted.
    pub admission_blocks: u64,
    /// GPU blocks once it decodes from the host.
    pub steady_blocks: u64,
    /// Host blocks.
    pub host_blocks: u64,
}

impl Demand {
    /// A request of `max_model_len_tokens` with `hot_groups` pairs of groups and `hot_blocks` per group; `None` on
    /// overflow.
    pub fn of(
        max_model_len_tokens: u64,
        in_flight_tokens: u64,
        block_tokens: u64,
        hot_groups: u64,
        hot_blocks: u64,
    ) -> Option<Self> {
        let block_tokens = block_tokens.max(1);
        let indexer = max_model_len_tokens.div_ceil(block_tokens);
        let window = max_model_len_tokens.min(in_flight_tokens).div_ceil(block_tokens);
        let with = |resident: u64| indexer.checked_add(hot_groups.checked_mul(hot_blocks.checked_add(resident)?)?);
        Some(Self {
            admission_blocks: with(window)?,
            steady_blocks: with(window.min(ACTIVE_TAIL_PAGES))?,
            host_blocks: indexer,
        })
    }
}

/// Both figures, in requests of the longest length; fractions as vLLM gives them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Concurrency {
    /// What vLLM logs as its maximum: it takes every request to hold its whole in-flight window on the GPU.
    pub logged_maximum: f64,
    /// What its steady-state estimate gives: one request is being admitted, the others read from the host.
    pub steady_state: f64,
    /// What the host pool alone allows; both figures are bounded by it.
    pub host_bound: f64,
}

/// Both figures for pools of `gpu_blocks` and `host_blocks`. A demand of nothing gives 0.
pub fn concurrency(demand: Demand, gpu_blocks: u64, host_blocks: u64) -> Concurrency {
    let per = |blocks: u64, demand: u64| if demand == 0 { 0.0 } else { to_f64(blocks) / to_f64(demand) };
    let host_bound = per(host_blocks, demand.host_blocks);
    let logged = per(gpu_blocks, demand.admission_blocks);
    let steady = match gpu_blocks.checked_sub(demand.admission_blocks) {
        Some(rest) => 1.0 + per(rest, demand.steady_blocks),
        None => logged,
    };
    Concurrency { logged_maximum: logged.min(host_bound), steady_state: steady.min(host_bound), host_bound }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp)] // the engine's own digits
    fn the_two_figures_disagree_as_vllm_prints_them() {
        let demand = Demand::of(131_072, 16_384, 64, 20, 64).unwrap();
        let figures = concurrency(demand, 139_810, 143_395);
        assert_eq!(figures.logged_maximum, 16.549_479_166_666_668);
        assert_eq!(figures.steady_state, 40.002_969_121_140_14);
    }

    #[test]
    fn a_pool_below_one_admission_admits_a_fraction() {
        let demand = Demand::of(131_072, 16_384, 64, 20, 64).unwrap();
        let figures = concurrency(demand, 5, 143_395);
        assert!(figures.steady_state < 1.0 && figures.steady_state.to_bits() == figures.logged_maximum.to_bits());
    }
}
