//! The plan of a DSA or M3 model: cell, then `N`, then the pools that `N` leads to.

use crate::budget::plan::{DeviceBytes, Number, Plan};
use crate::budget::request::PlanRequest;
use crate::budget::vllm::{floor_to_count, to_f64};
use crate::error::{Problem, Problems};
use crate::model::Layer;

use super::VERSION;
use super::cell::{Cell, cell, page_tokens};
use super::detail::Detail;
use super::pools::{self, BuildError, Capacity};
use super::profile::{Profile, Sizes};

impl Profile<'_> {
    /// DSA and M3. `None` on overflow.
    pub(super) fn dsa_plan(&self) -> Option<Result<Plan, Problems>> {
        let page = page_tokens(self.rank.model, self.request);
        let cell = cell(self.rank, self.request)?;
        let Some(cell_bytes) = u64::try_from(cell.with_drafts).ok().filter(|bytes| *bytes > 0) else {
            let rule = "makes a token cost nothing or less";
            return Some(Err(Problems::one(Problem::new("--ratio", self.factor, rule, "use 1 or more"))));
        };
        let device_tokens = self.kv_bytes / cell_bytes / page * page;
        let layers = self.rank.kv_layers();
        let shape = pools::Shape {
            layers,
            row_bytes: cell.row_bytes,
            indexer_bytes: self.rank.indexer.row_bytes(),
            page_tokens: page,
        };
        let built = Capacity::new(shape, device_tokens, self.factor, self.is_int);
        if built == Err(BuildError::Overflow) {
            return None;
        }
        let logical_tokens = floor_to_count(to_f64(device_tokens) * self.factor);
        let device_bytes = self.device_bytes(&cell, built.ok(), device_tokens)?;
        let budgeted = u128::from(cell_bytes) * u128::from(device_tokens);
        let unbudgeted = u128::from(device_bytes.total()?).saturating_sub(budgeted);
        let host_bytes = match built {
            Ok(capacity) if self.request.hisparse => capacity.host_tokens.checked_mul(self.host_row_bytes(&cell)?)?,
            _ => 0,
        };
        let detail = self.detail(&cell, page, device_tokens, u64::try_from(unbudgeted).ok()?);
        Some(self.assemble(&Sizes {
            page,
            starts: built.is_ok(),
            cell_bytes: Number::Whole(cell_bytes),
            device_tokens,
            logical_tokens,
            host_bytes,
            host_token_bytes: self.host_row_bytes(&cell)?,
            seats: self.seats(device_tokens),
            baseline_tokens: self.baseline_tokens()?,
            device_bytes,
            detail,
        }))
    }

    /// Host bytes of one token: the rows that leave the GPU, without indexer keys.
    fn host_row_bytes(&self, cell: &Cell) -> Option<u64> {
        self.rank.sparse_layers().checked_mul(cell.row_bytes)
    }

    fn device_bytes(&self, cell: &Cell, built: Option<Capacity>, device_tokens: u64) -> Option<DeviceBytes> {
        let Some(capacity) = built else { return Some(DeviceBytes::default()) };
        let (rank, hisparse) = (self.rank, self.request.hisparse);
        let padded = |tokens: u64| tokens.checked_add(page_tokens(rank.model, self.request));
        let dense = rank.count(|layer| layer == Layer::Dense);
        let sparse_bytes = padded(device_tokens)?.checked_mul(cell.row_bytes)?.checked_mul(rank.sparse_layers())?;
        let dense_bytes = padded(capacity.logical_tokens)?.checked_mul(cell.row_bytes)?.checked_mul(dense)?;
        let indexers = if hisparse && dense == 0 { rank.kv_layers() } else { rank.indexer_layers() };
        let draft_cell = u64::try_from(cell.with_drafts.checked_sub(cell.target)?).ok()?;
        Some(DeviceBytes {
            hot: if hisparse { sparse_bytes } else { 0 },
            indexer: capacity.device_index_bytes.checked_div(rank.kv_layers())?.checked_mul(indexers)?,
            tables: if hisparse { self.tables.gpu_bytes.checked_add(self.tables.spec_gpu_bytes)? } else { 0 },
            maps: if hisparse { capacity.mapping_bytes } else { 0 },
            side: 0,
            draft: draft_cell.checked_mul(device_tokens)?,
            resident: dense_bytes.checked_add(if hisparse { 0 } else { sparse_bytes })?,
        })
    }

    /// Tokens without HiSparse.
    fn baseline_tokens(&self) -> Option<u64> {
        let off = PlanRequest { hisparse: false, ..self.request.clone() };
        let cell = cell(self.rank, &off)?;
        let page = page_tokens(self.rank.model, &off);
        Some(self.kv_bytes.checked_div(u64::try_from(cell.with_drafts).ok()?)? / page * page)
    }

    fn detail(&self, cell: &Cell, page: u64, device_tokens: u64, unbudgeted_bytes: u64) -> Detail {
        let whole = |bytes: i64| Number::Whole(u64::try_from(bytes).unwrap_or(0));
        Detail {
            version: VERSION,
            cell_size: whole(cell.with_drafts),
            target_cell_size: whole(cell.target),
            indexer_cell_bytes: cell.indexer,
            page_size: page,
            max_total_num_tokens: device_tokens,
            max_req_input_len: 0,
            padded_buffer_size: self.tables.padded_rows,
            spec_scratch_capacity: self.tables.scratch_rows,
            unbudgeted_bytes,
            v4: None,
        }
    }
}
