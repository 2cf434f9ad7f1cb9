//! What holds of every vLLM plan, whatever the numbers.

use hisparse_core::budget::request::{HostSizing, LayerSpan, PlanRequest};
use hisparse_core::budget::vllm::allocation::{Start, allocate};
use hisparse_core::budget::vllm::cache::Cache;
use hisparse_core::budget::vllm::calculator::{Blocks, Node, Terms, answer, break_even_context_tokens};
use hisparse_core::budget::vllm::config::resolve;
use hisparse_core::budget::vllm::groups::{Geometry, pack};
use hisparse_core::budget::vllm::pool::Parallel;
use hisparse_core::budget::vllm::profile;
use hisparse_core::budget::vllm::registration::{OS_PAGE_BYTES, ranges};
use hisparse_core::budget::vllm::shared_memory::resolver_bytes;
use hisparse_core::model::presets::{ALL, preset};
use hisparse_core::platform::{KvDtype, Platform};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn leads() -> impl Strategy<Value = Vec<bool>> {
    proptest::collection::vec(any::<bool>(), 1..100).prop_map(|mut leads| {
        leads[0] = true;
        leads
    })
}

fn geometry(leads: &[bool]) -> Geometry<'_> {
    Geometry { row_bytes: 656, indexer_bytes: 132, leads, block_tokens: 64 }
}

/// Mostly usual numbers, and the ends of the range among them.
fn any_size() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..4096, 0_u64..(1 << 45), Just(0), Just(1), Just(u64::MAX), any::<u64>()]
}

/// A number from the usual range nine times in ten, else any.
fn usually(low: u64, high: u64) -> impl Strategy<Value = u64> {
    prop_oneof![9 => low..=high, 1 => any_size()]
}

proptest! {
    #[test]
    fn more_memory_never_admits_fewer(
        leads in leads(), gpu in 0_u64..200 * GIB, host in 1_u64..2_000 * GIB, more in 0_u64..100 * GIB,
        length in 1_u64..300_000, draft in 0_u64..8,
    ) {
        let mut start = Start::new(geometry(&leads), 2048, gpu, host, length);
        start.speculative_tokens = draft;
        if let Ok(base) = allocate(start) {
            for richer in [Start { gpu_bytes: gpu + more, ..start }, Start { host_bytes: host + more, ..start }] {
                let richer = allocate(richer).unwrap();
                prop_assert!(richer.concurrency.steady_state >= base.concurrency.steady_state);
                prop_assert!(richer.concurrency.logged_maximum >= base.concurrency.logged_maximum);
            }
            prop_assert!(base.concurrency.steady_state >= base.concurrency.logged_maximum * (1.0 - 1e-12));
            prop_assert!(base.gpu_pool_bytes <= gpu && base.host.tensor_bytes <= host);
        }
    }

    #[test]
    fn packing_loses_no_layer_and_a_block_holds_every_group(leads in leads(), row in 1_u64..4096) {
        let groups = pack(Geometry { row_bytes: row, ..geometry(&leads) }).unwrap();
        prop_assert_eq!(groups.hot_group_layers.iter().sum::<u64>(), leads.len() as u64);
        for layers in &groups.hot_group_layers {
            prop_assert!(layers * groups.hot_page_bytes <= groups.gpu_block_bytes);
        }
        prop_assert!(groups.indexer_page_bytes <= groups.gpu_block_bytes);
        prop_assert_eq!(groups.gpu_block_bytes % groups.hot_page_bytes, 0);
    }

    #[test]
    fn the_calculator_never_answers_below_the_baseline_and_grows_with_memory(
        leads in leads(), kv in 0_u64..500 * GIB, host in 0_u64..4_000 * GIB, more in 0_u64..100 * GIB,
        hot_rows in 1_u64..32_768, context in 1_u64..2_000_000,
    ) {
        let blocks = Blocks::of(&pack(geometry(&leads)).unwrap(), 64).unwrap();
        let with = |kv_bytes, host_bytes| {
            let terms = Terms { host_bytes: Some(host_bytes), ..Terms::new(hot_rows) };
            answer(&Node::with_kv_bytes(kv_bytes), &blocks, &terms, context).unwrap()
        };
        let base = with(kv, host);
        prop_assert!(base.hisparse >= base.baseline);
        prop_assert!(with(kv + more, host).hisparse >= base.hisparse);
        prop_assert!(with(kv, host + more).hisparse >= base.hisparse);
        prop_assert!(with(kv, base.minimum_host_bytes).hisparse >= base.hisparse);
    }

    #[test]
    fn registrations_cover_the_pool_and_cut_no_block(
        layers in 1_u64..9, block_units in 1_u64..64, unit in prop_oneof![Just(64_u64), Just(512), Just(4096), Just(41_984)],
        blocks in 1_u64..2_000, chunk_pages in 1_u64..5_000,
    ) {
        let block_bytes = block_units * unit;
        let stride = (layers * block_bytes).next_multiple_of(OS_PAGE_BYTES);
        let tensors = vec![block_bytes * blocks; usize::try_from(layers).unwrap()];
        let chunk = chunk_pages * OS_PAGE_BYTES;
        if let Ok(cut) = ranges(&tensors, blocks, stride, chunk) {
            let mut at = 0;
            for range in &cut {
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > range.start && range.end - range.start <= chunk);
                let in_layers = range.end < layers * block_bytes * blocks;
                prop_assert!(!in_layers || range.end % (block_bytes * blocks) % block_bytes == 0, "{:?}", range);
                prop_assert!(range.end % OS_PAGE_BYTES == 0);
                at = range.end;
            }
            prop_assert_eq!(at, blocks * stride);
        }
    }

    #[test]
    fn no_number_makes_the_parts_panic(
        a in any_size(), b in any_size(), c in any_size(), d in any_size(), e in any_size(), leads in leads(),
    ) {
        if let Ok(rows) = resolve(a, b, Some(c)) {
            let _ = resolver_bytes(rows);
        }
        let geometry = Geometry { row_bytes: a, indexer_bytes: b, leads: &leads, block_tokens: c };
        let mut start = Start::new(geometry, d, e, a, b);
        start.in_flight_tokens = c;
        start.speculative_tokens = d % 40;
        start.gpu_blocks_override = (e % 3 == 0).then_some(e);
        start.parallel = Parallel::tensor_only(b);
        let _ = allocate(start);
        let blocks = Blocks { baseline_bytes: a, gpu_bytes: b, host_bytes: c, groups: d, block_tokens: e };
        let terms = Terms { hot_rows: e, host_bytes: Some(d), retained_pages: c, ..Terms::new(a) };
        let _ = break_even_context_tokens(&blocks, &terms);
        let _ = answer(&Node { tensor_parallel: b, data_parallel: c, ..Node::with_kv_bytes(d) }, &blocks, &terms, a);
    }

    #[test]
    fn a_profile_is_a_plan_or_its_problems(
        model in 0..ALL.len(), dtype in 0..KvDtype::ALL.len(), kv in usually(GIB, 300 * GIB),
        host in usually(GIB, 4_000 * GIB), hot in usually(2_048, 40_000), sizing in 0_usize..2,
        refused in proptest::bool::weighted(0.05), tp in prop_oneof![9 => (0_u32..4).prop_map(|power| 1 << power), 1 => any_size()], mtp in usually(0, 7),
        draft in proptest::option::of(usually(0, 4)),
        contexts in proptest::collection::vec(usually(1, 2_000_000), 0..4),
        hisparse in any::<bool>(), layers in usually(1, 200), sm in 0_u64..200, seqs in usually(1, 2_000),
    ) {
        let model = preset(ALL[model].name).unwrap();
        let request = PlanRequest {
            platform: if refused { Platform::Rocm } else { Platform::Cuda },
            sm,
            kv_dtype: KvDtype::ALL[dtype], hisparse, tp, mtp, contexts,
            sizing: [None, Some(HostSizing::HostPool(host))][sizing],
            hot_rows: (hot % 2 == 0).then_some(hot),
            layers: if layers % 2 == 0 { LayerSpan::All } else { LayerSpan::First(layers) },
            draft_layers: draft, max_seqs: Some(seqs), machine_memory_bytes: (seqs % 2 == 0).then_some(host),
            ..PlanRequest::default()
        };
        match profile(&model, &request, kv) {
            Ok(plan) => {
                prop_assert!(plan.device_bytes.total().is_some_and(|total| total <= kv));
                prop_assert!(plan.concurrency.iter().all(|row| row.hisparse >= row.baseline));
            }
            Err(problems) => prop_assert!(!problems.is_empty()),
        }
    }
}

#[test]
fn a_count_of_draft_layers_beyond_any_model_is_refused() {
    let model = preset("glm-5.2").unwrap();
    assert!(Cache::of(&model, KvDtype::Fp8Raw, 1, 78, usize::MAX).is_err());
}
