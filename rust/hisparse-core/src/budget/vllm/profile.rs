//! `plan --engine vllm`: what vLLM 0.33.0 will allocate, accept and admit, as the one plan type.
//!
//! ```text
//!  Model ─► cache ─┐
//!  PlanRequest ────┼─► allocate ─► Plan          blocks → tokens, bytes, seats
//!  GPU bytes ──────┘       └─► calculator ─► concurrency[]
//!                          └─► quirks ─► warnings[]
//! ```
//! vLLM has one GPU pool for everything, so a plan splits it by what it holds when as many longest requests run as the
//! steady state allows; the rest of the pool is resident pages.

use crate::budget::concurrency::{bindings, contexts};
use crate::budget::plan::{self, DeviceBytes, Number, Plan, PlanLayout, PlanModel};
use crate::budget::rank::draft_layers;
use crate::budget::request::{HostSizing, PlanRequest};
use crate::error::Problems;
use crate::model::{Model, Shape};
use crate::platform::Engine;

use super::allocation::{Allocation, Start, allocate};
use super::cache::Cache;
use super::calculator::{self, Blocks, DEFAULT_MAX_SEQUENCES, Node, Terms};
use super::concurrency::Demand;
use super::detail::Detail;
use super::groups::pack;
use super::pool::{Parallel, SPARE_HOST_BLOCKS, host_block_stride};
use super::scope::{check_host, check_resolver, layers_kept, max_model_len_tokens, refused_flags, under_flag_names};
use super::{DEFAULT_IN_FLIGHT_TOKENS, counted, floor_to_count, quirks, shared_memory, to_f64};

/// What the engine allocates for `model` with `kv_bytes` of GPU memory left for KV.
///
/// # Errors
/// What vLLM refuses and what is not recorded about it, all of one request together, under the names of the flags.
pub fn profile(model: &Model, request: &PlanRequest, kv_bytes: u64) -> Result<Plan, Problems> {
    let applies = matches!(model.shape, Shape::Mla { .. } | Shape::DeepseekV4 { .. });
    let plan = if request.hisparse && applies {
        Profile::of(model, request, kv_bytes).and_then(|profile| profile.plan())
    } else {
        super::baseline::plan(model, request, kv_bytes)
    };
    plan.map_err(under_flag_names)
}

/// One request settled into the engine's terms.
struct Profile<'a> {
    model: &'a Model,
    request: &'a PlanRequest,
    kv_bytes: u64,
    cache: Cache,
    allocation: Allocation,
    max_model_len_tokens: u64,
    draft_layers: u64,
    /// Whether the host pool was sized here because none was given.
    host_chosen: bool,
}

impl<'a> Profile<'a> {
    fn of(model: &'a Model, request: &'a PlanRequest, kv_bytes: u64) -> Result<Self, Problems> {
        let mut problems = refused_flags(request);
        let layers = layers_kept(model, request.layers);
        let draft_layers = draft_layers(model, request);
        // What does not fit a word is refused with the other counts that are too large.
        let drafts = usize::try_from(draft_layers).unwrap_or(usize::MAX);
        let cache = layers.and_then(|layers| Cache::of(model, request.kv_dtype, request.tp, layers, drafts));
        let cache = match cache {
            Ok(cache) => cache,
            Err(found) => {
                problems.extend(found);
                return Err(problems);
            }
        };

        let max_model_len_tokens = max_model_len_tokens(model, request);
        let geometry = cache.geometry(request.page_tokens);
        let mut start = Start::new(geometry, model.top_k, kv_bytes, 0, max_model_len_tokens);
        start.speculative_tokens = request.mtp;
        start.device_buffer_size = request.hot_rows;
        start.parallel = Parallel::tensor_only(request.tp);
        let host_chosen = !matches!(request.sizing, Some(HostSizing::HostPool(_)));
        let host_bytes = match request.sizing {
            Some(HostSizing::HostPool(bytes)) => Ok(bytes),
            _ => enough_host_bytes(start),
        };
        let allocation = host_bytes.and_then(|host_bytes| allocate(Start { host_bytes, ..start }));
        let allocation = match allocation {
            Ok(allocation) => {
                for found in [check_host(request, &allocation), check_resolver(request, &allocation)] {
                    problems.extend(found.err().unwrap_or_default());
                }
                allocation
            }
            Err(found) => {
                problems.extend(found);
                return Err(problems);
            }
        };
        problems.into_result(())?;
        Ok(Self { model, request, kv_bytes, cache, allocation, max_model_len_tokens, draft_layers, host_chosen })
    }

    fn plan(&self) -> Result<Plan, Problems> {
        let Allocation { groups, host, .. } = &self.allocation;
        let page_tokens = self.request.page_tokens;
        let block_tokens = |blocks: u64| counted("--kv-bytes", self.kv_bytes, blocks.checked_mul(page_tokens));
        // A token is wholly on the GPU when the indexer and every resident group hold its page.
        let device_tokens = block_tokens(self.allocation.gpu_blocks / groups.hot_groups().saturating_add(1))?;
        let logical_tokens = block_tokens(self.allocation.gpu_blocks.min(host.blocks))?;
        let host_bytes = host.blocks * host.block_stride_bytes;
        let copies = if host.shared { 1 } else { self.request.tp };
        let physical_host_bytes = host_bytes.checked_mul(self.request.dp).and_then(|bytes| bytes.checked_mul(copies));
        let geometry = self.cache.geometry(page_tokens);
        let max_request_tokens = self.max_request_tokens();
        let concurrency = self.concurrency()?;
        let terms = Terms::new(self.allocation.hot_rows.hot_rows);
        let break_even_tokens = calculator::break_even_context_tokens(&self.blocks()?, &terms)?;
        let mut warnings = self.warnings(max_request_tokens)?;
        warnings.extend(quirks::losing(break_even_tokens, &concurrency));
        Ok(Plan {
            engine: Engine::Vllm,
            model: PlanModel {
                name: self.model.name.clone(),
                family: self.model.family,
                layers: self.cache.main_layers(),
                indexer_layers: self.cache.indexed_layers(),
                draft_layers: self.draft_layers,
                top_k: self.model.top_k,
                picks_per_row: self.model.picks_per_row(),
                tokens_per_index_key: self.model.index_pooling,
                layer_groups: Vec::new(),
            },
            layout: PlanLayout {
                kv_dtype: self.request.kv_dtype,
                row_bytes: geometry.row_bytes,
                row_stride: geometry.row_bytes,
                indexer_bytes: geometry.indexer_bytes,
            },
            hisparse: true,
            page_tokens,
            kv_bytes: self.kv_bytes,
            ratio: Number::Float(if device_tokens == 0 { 0.0 } else { to_f64(logical_tokens) / to_f64(device_tokens) }),
            cell_bytes: Number::Whole(groups.gpu_block_bytes / page_tokens),
            device_tokens,
            logical_tokens,
            host_bytes,
            physical_host_bytes: counted("--dp", self.request.dp, physical_host_bytes)?,
            hot_rows: self.allocation.hot_rows.hot_rows,
            seats: self.seats(),
            max_request_tokens,
            max_req_len: max_request_tokens,
            side_buffer_tokens: 0,
            window_tokens: None,
            break_even_tokens,
            sglang: None,
            vllm: Some(Detail::of(&self.allocation)),
            device_bytes: self.device_bytes(),
            binding: bindings(&concurrency),
            warnings,
            concurrency,
        })
    }

    /// Requests whose hot buffers and tail pages the GPU pool holds.
    fn seats(&self) -> u64 {
        let Demand { steady_blocks, host_blocks, .. } = self.allocation.demand;
        let per_seat = steady_blocks.saturating_sub(host_blocks).max(1);
        (self.allocation.gpu_blocks / per_seat).min(self.max_seqs())
    }

    fn blocks(&self) -> Result<Blocks, Problems> {
        let page_tokens = self.request.page_tokens;
        counted("--page-size", page_tokens, Blocks::of(&self.allocation.groups, page_tokens))
    }

    fn max_seqs(&self) -> u64 {
        self.request.max_seqs.unwrap_or(DEFAULT_MAX_SEQUENCES)
    }

    /// The longest request whose admission both pools can meet, up to `max_model_len`.
    fn max_request_tokens(&self) -> u64 {
        let page_tokens = self.request.page_tokens;
        let host = self.allocation.host.blocks.saturating_sub(SPARE_HOST_BLOCKS).saturating_mul(page_tokens);
        let groups = self.allocation.groups.hot_groups();
        let fits = |tokens: u64| {
            let hot_blocks = self.allocation.hot_blocks_per_request;
            Demand::of(tokens, DEFAULT_IN_FLIGHT_TOKENS, page_tokens, groups, hot_blocks)
                .is_some_and(|demand| demand.admission_blocks <= self.allocation.gpu_blocks)
        };
        let (mut fitting, mut above) = (0, self.max_model_len_tokens.min(host).saturating_add(1));
        while above - fitting > 1 {
            let middle = fitting + (above - fitting) / 2;
            if fits(middle) { fitting = middle } else { above = middle }
        }
        fitting
    }

    /// The GPU pool by use, when as many longest requests run as the steady state allows.
    fn device_bytes(&self) -> DeviceBytes {
        let Allocation { groups, demand, concurrency, .. } = &self.allocation;
        let running = floor_to_count(concurrency.steady_state).min(self.max_seqs());
        let blocks = |per_request: u64| {
            running
                .saturating_mul(per_request)
                .saturating_mul(groups.gpu_block_bytes)
                .min(self.allocation.gpu_pool_bytes)
        };
        let indexer = blocks(demand.host_blocks);
        let hot = blocks(groups.hot_groups().saturating_mul(self.allocation.hot_blocks_per_request));
        let resident = self.allocation.gpu_pool_bytes.saturating_sub(indexer).saturating_sub(hot);
        DeviceBytes { hot, indexer, resident, ..DeviceBytes::default() }
    }

    fn concurrency(&self) -> Result<Vec<plan::Concurrency>, Problems> {
        let page_tokens = self.request.page_tokens;
        let blocks = self.blocks()?;
        let mut terms = Terms::new(self.allocation.hot_rows.hot_rows);
        terms.max_sequences = self.max_seqs();
        if !self.host_chosen {
            terms.host_bytes = Some(self.allocation.host.blocks.saturating_mul(blocks.host_bytes));
        }
        let node = Node::with_kv_bytes(self.kv_bytes);
        contexts(self.model, &self.request.contexts)
            .iter()
            .map(|&context| {
                let answer = calculator::answer(&node, &blocks, &terms, context)?;
                let pages = context.div_ceil(page_tokens);
                let gains = answer.hisparse > answer.baseline;
                let bytes = answer.hisparse.checked_mul(pages).and_then(|pages| pages.checked_mul(blocks.host_bytes));
                Ok(plan::Concurrency {
                    context,
                    baseline: answer.baseline,
                    hisparse: answer.hisparse,
                    host_bytes: if gains { counted("--context", context, bytes)? } else { 0 },
                    binding: match answer.binding {
                        calculator::Binding::Sequences => plan::Binding::RequestSlots,
                        calculator::Binding::Host => plan::Binding::HostPages,
                        calculator::Binding::Gpu if !gains => plan::Binding::DeviceTokens,
                        calculator::Binding::Gpu if pages > answer.request_blocks.saturating_sub(pages) => {
                            plan::Binding::IndexerTokens
                        }
                        calculator::Binding::Gpu => plan::Binding::Seats,
                    },
                })
            })
            .collect()
    }

    fn warnings(&self, max_request_tokens: u64) -> Result<Vec<String>, Problems> {
        let mut warnings = self.model.warnings.clone();
        let page_tokens = self.request.page_tokens;
        warnings.push(quirks::two_figures(&self.allocation, self.max_model_len_tokens));
        if self.draft_layers > 0 {
            let layers = layers_kept(self.model, self.request.layers)?;
            let without = Cache::of(self.model, self.request.kv_dtype, self.request.tp, layers, 0)?;
            let without = pack(without.geometry(page_tokens))?;
            warnings.extend(quirks::draft_rounding(&without, &self.allocation.groups, self.draft_layers));
        }
        warnings.extend(quirks::block_rounding(&self.allocation.groups));
        warnings.extend(super::config::padding_warning(self.allocation.hot_rows.hot_rows, page_tokens));
        if self.host_chosen {
            warnings.push(quirks::no_host_pool(&self.allocation.host, self.max_model_len_tokens));
        }
        if self.request.share_host && !self.allocation.host.shared {
            warnings.push(quirks::NOT_SHARED.to_owned());
        }
        if shared_memory::device_limit_bytes(self.request.sm).is_none() {
            warnings.push(quirks::unknown_shared_memory(self.request.sm, self.allocation.hot_rows)?);
        }
        warnings.extend(quirks::beyond_the_model(self.model.context_tokens.get(), self.max_model_len_tokens));
        if max_request_tokens < self.max_model_len_tokens {
            warnings.push(quirks::too_long_to_admit(max_request_tokens, self.max_model_len_tokens));
        }
        warnings.push(quirks::RESOLVER.to_owned());
        warnings.push(quirks::one_pool());
        Ok(warnings)
    }
}

/// The host pool that lets the GPU pool bind at the longest length, in bytes.
fn enough_host_bytes(mut start: Start<'_>) -> Result<u64, Problems> {
    let groups = pack(start.geometry)?;
    let stride = host_block_stride(groups.host_block_bytes, start.parallel.shares_host_pool());
    let stride = counted("model", groups.layers, stride)?;
    // A pool without bound: what is then allowed is bounded by the GPU alone.
    start.host_bytes = u64::MAX;
    let unbounded = allocate(start)?;
    let requests = floor_to_count(unbounded.concurrency.steady_state).max(1);
    let blocks = unbounded.demand.host_blocks.checked_mul(requests);
    let blocks = blocks.map(|blocks| blocks.max(unbounded.demand.host_blocks.saturating_add(SPARE_HOST_BLOCKS)));
    counted("--kv-bytes", start.gpu_bytes, blocks.and_then(|blocks| blocks.checked_mul(stride)))
}
