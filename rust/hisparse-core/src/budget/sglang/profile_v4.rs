//! The plan of DeepSeek-V4: `N` is the logical size, and the C4 pool shrinks by the ratio.

use crate::budget::plan::{DeviceBytes, Number, Plan};
use crate::budget::rank::{PAGE_ROWS, too_large};
use crate::budget::vllm::{floor_to_count, to_f64};
use crate::error::{Problem, Problems};
use crate::model::Layer;

use super::VERSION;
use super::cell::v4_setting;
use super::detail::{Detail, V4Detail};
use super::profile::{Profile, Sizes};
use super::v4;

impl Profile<'_> {
    /// The whole plan.
    pub(super) fn v4_plan(&self) -> Result<Plan, Problems> {
        let overflow = || Problems::one(too_large("--kv-bytes", self.kv_bytes));
        let setting = v4_setting(self.rank, self.request);
        let bytes = v4::token_bytes(self.rank, &setting).ok_or_else(overflow)?;
        let Some(pools) = v4::pools(&bytes, &setting, self.kv_bytes) else {
            let rule = format!(
                "leaves no page of window after {} bytes of compressor state; SGLang refuses to start",
                floor_to_count(bytes.fixed)
            );
            return Err(Problems::one(Problem::new(
                "--kv-bytes",
                self.kv_bytes,
                rule,
                "give more, or lower --max-seqs",
            )));
        };
        let off = v4::Setting { ratio: 1.0, ..setting };
        let baseline = v4::token_bytes(self.rank, &off).and_then(|bytes| v4::pools(&bytes, &off, self.kv_bytes));
        let c4_rows = floor_to_count(pools.c4);
        let layers = self.rank.indexer_layers();
        let page_bytes = self.rank.main.page_bytes(PAGE_ROWS).ok_or_else(overflow)?;
        let host_page_bytes = page_bytes.checked_mul(layers).ok_or_else(overflow)?;
        let pages = (pools.full / Layer::INDEXED_RATIO).div_ceil(PAGE_ROWS);
        let rows = to_f64(c4_rows) * to_f64(page_bytes) / to_f64(PAGE_ROWS);
        let keys = pools.full / Layer::INDEXED_RATIO * self.rank.indexer.row_bytes();
        let hot = floor_to_count(rows * to_f64(layers));
        let indexer = keys.checked_mul(layers).ok_or_else(overflow)?;
        let resident =
            floor_to_count(bytes.full * to_f64(pools.full) + bytes.fixed).saturating_sub(hot).saturating_sub(indexer);
        let device_bytes = DeviceBytes {
            hot,
            indexer,
            resident,
            tables: if self.request.hisparse { self.tables.gpu_bytes } else { 0 },
            ..DeviceBytes::default()
        };
        let detail = Detail {
            version: VERSION,
            cell_size: Number::Float(bytes.full),
            target_cell_size: Number::Float(bytes.full),
            indexer_cell_bytes: i64::try_from(layers * self.rank.indexer.row_bytes() / Layer::INDEXED_RATIO)
                .unwrap_or(i64::MAX),
            page_size: v4::PAGE_TOKENS,
            max_total_num_tokens: pools.full,
            max_req_input_len: 0,
            padded_buffer_size: self.tables.padded_rows,
            spec_scratch_capacity: self.tables.scratch_rows,
            unbudgeted_bytes: device_bytes.tables,
            v4: Some(V4Detail {
                bytes_per_swa_token: bytes.window,
                swa_full_tokens_ratio: setting.window_ratio,
                swa_max_total_num_tokens: pools.window,
                c4_max_total_num_tokens: pools.c4,
                c128_max_total_num_tokens: pools.c128,
                c4_state_pool_size: pools.c4_state,
            }),
        };
        self.assemble(&Sizes {
            page: v4::PAGE_TOKENS,
            starts: true,
            cell_bytes: Number::Float(bytes.full),
            device_tokens: pools.full,
            logical_tokens: pools.full,
            host_bytes: if self.request.hisparse {
                pages.checked_mul(host_page_bytes).ok_or_else(overflow)?
            } else {
                0
            },
            host_token_bytes: host_page_bytes / v4::PAGE_TOKENS,
            seats: self.seats(c4_rows),
            baseline_tokens: baseline.map_or(0, |pools| pools.full),
            device_bytes,
            detail,
        })
    }
}
