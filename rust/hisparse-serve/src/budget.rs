//! `BudgetService`: the planner and the validator over the wire.
//!
//! ```text
//!  message ──► the map that the command line makes of its flags ──► core's strict reader ──► plan / validate ──► message
//! ```
//! A field left out is a flag left out. Every rule, default and message is the core's; a test holds the fields of the
//! two requests against the reader's keys. Planning may search, so it runs beside the threads that answer Admit.

use std::sync::Arc;

use hisparse_core::budget::plan::{Number, PlanModel};
use hisparse_core::budget::{Plan, PlanRequest, plan};
use hisparse_core::error::Problems;
use hisparse_core::model::{Model, presets};
use hisparse_core::validity::{Resolved, Surroundings, Validation};
use serde::Serialize;
use serde_json::{Map, Value};
use tonic::{Request, Response, Status};

use crate::error::Refusal;
use crate::node::Node;
use crate::proto::budget_service_server::BudgetService;
use crate::{proto, wire};

/// The service.
#[derive(Debug)]
pub(crate) struct Budget {
    node: Arc<Node>,
}

impl Budget {
    pub(crate) const fn new(node: Arc<Node>) -> Self {
        Self { node }
    }
}

#[tonic::async_trait]
impl BudgetService for Budget {
    async fn get_budget(
        &self,
        request: Request<proto::GetBudgetRequest>,
    ) -> Result<Response<proto::GetBudgetResponse>, Status> {
        let mut message = request.into_inner();
        let model = std::mem::take(&mut message.model);
        let flags = plan_flags(message);
        let budget = if model.is_empty() {
            self.own_budget(&flags)?
        } else {
            beside(move || {
                // Both are read, so that the problems of both come back together.
                match (read_model(&model), PlanRequest::from_json(&flags)) {
                    (Ok(model), Ok(request)) => plan(&model, &request),
                    (Err(mut problems), Err(more)) => {
                        problems.extend(more);
                        Err(problems)
                    }
                    (Err(problems), _) | (_, Err(problems)) => Err(problems),
                }
            })
            .await?
            .map_err(Refusal::Invalid)?
        };
        Ok(Response::new(shown(&budget)))
    }

    async fn validate(
        &self,
        request: Request<proto::ValidateRequest>,
    ) -> Result<Response<proto::ValidateResponse>, Status> {
        let mut message = request.into_inner();
        let model = std::mem::take(&mut message.model);
        let flags = validate_flags(message);
        let verdict = beside(move || {
            let model = (!model.is_empty()).then(|| read_model(&model));
            Validation::of_map(&flags, Surroundings { model, ..Surroundings::default() })
        })
        .await?;
        Ok(Response::new(proto::ValidateResponse {
            valid: verdict.valid,
            resolved: Some(resolved(verdict.resolved)),
            problems: wire::problems(&verdict.problems),
            warnings: verdict.warnings,
        }))
    }

    async fn list_models(
        &self,
        _: Request<proto::ListModelsRequest>,
    ) -> Result<Response<proto::ListModelsResponse>, Status> {
        let read = presets::ALL.iter().map(|preset| presets::preset(preset.name));
        let models: Vec<Model> = read.collect::<Result<_, Problems>>().map_err(Refusal::Invalid)?;
        let shown = models.iter().map(|model| proto::BudgetModel {
            name: model.name.clone(),
            family: word(&model.family),
            layers: model.count_layers(|_| true),
            indexer_layers: model.indexer_layers(),
            top_k: model.top_k,
            draft_layers: model.draft_layers,
        });
        Ok(Response::new(proto::ListModelsResponse { models: shown.collect() }))
    }
}

impl Budget {
    fn own_budget(&self, flags: &Map<String, Value>) -> Result<Plan, Refusal> {
        if let Some((field, value)) = flags.iter().next() {
            let rule = "has no meaning without a model: this node's own budget is what it is";
            return Err(Refusal::field(field, value, rule, "name a model, or leave it out"));
        }
        let rule = "must name a model: this node was not started from a plan";
        self.node.config.budget.clone().ok_or_else(|| Refusal::field("model", "missing", rule, "name one"))
    }
}

/// Computes on a thread of its own, so that a long search does not delay decisions.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Refusal::Failed("the planner"))
}

/// A preset's name, or the text of a config.json.
fn read_model(model: &str) -> Result<Model, Problems> {
    if model.trim_start().starts_with('{') {
        Model::from_json_text("config.json", model)
    } else {
        presets::preset(model)
    }
}

/// Puts the fields that are there into a map, under their own names.
macro_rules! flags {
    ($message:ident: $($field:ident),+ $(,)?) => {{
        let mut map = Map::new();
        $(if let Some(value) = $message.$field {
            map.insert(stringify!($field).to_owned(), Value::from(value));
        })+
        map
    }};
}

fn plan_flags(message: proto::GetBudgetRequest) -> Map<String, Value> {
    let mut map = flags!(message: engine, platform, sm, kv_dtype, hisparse, ratio, host_pool, auto, hot_rows, page_size,
        num_layers, stage, tp, dp, pp, ep, max_seqs, mtp, draft_layers, gpu, kv_bytes, weights, share_host,
        assume_memory, swa_full_tokens_ratio, chunked_prefill_size);
    if !message.context.is_empty() {
        map.insert("context".to_owned(), Value::from(message.context));
    }
    map
}

fn validate_flags(message: proto::ValidateRequest) -> Map<String, Value> {
    flags!(message: engine, hisparse_config, platform, sm, kv_dtype, prefill_backend, decode_backend, heads, host_pool,
        assume_memory, context, page_size, disable_radix_cache, enable_mixed_chunk, speculative_num_steps,
        speculative_num_draft_tokens, speculative_eagle_topk, pp_size)
}

/// The word that JSON has for it.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        other => other.map(|value| value.to_string()).unwrap_or_default(),
    }
}

fn number(number: Number) -> f64 {
    match number {
        #[allow(clippy::cast_precision_loss)] // bytes per token and ratios are far below 2^53
        Number::Whole(whole) => whole as f64,
        Number::Float(float) => float,
    }
}

fn shown(plan: &Plan) -> proto::GetBudgetResponse {
    let PlanModel {
        name,
        family,
        layers,
        indexer_layers,
        draft_layers,
        top_k,
        picks_per_row: _,
        tokens_per_index_key: _,
        layer_groups: _,
    } = plan.model.clone();
    let family = word(&family);
    proto::GetBudgetResponse {
        model: Some(proto::BudgetModel { name, family, layers, indexer_layers, top_k, draft_layers }),
        layout: Some(proto::BudgetLayout {
            kv_dtype: word(&plan.layout.kv_dtype),
            row_bytes: plan.layout.row_bytes,
            row_stride: plan.layout.row_stride,
            indexer_bytes: plan.layout.indexer_bytes,
        }),
        cell_bytes: number(plan.cell_bytes),
        device_tokens: plan.device_tokens,
        logical_tokens: plan.logical_tokens,
        host_bytes: plan.host_bytes,
        hot_rows: plan.hot_rows,
        seats: plan.seats,
        max_request_tokens: plan.max_request_tokens,
        max_req_len: plan.max_req_len,
        side_buffer_tokens: plan.side_buffer_tokens,
        device_bytes: Some(proto::DeviceBytes {
            hot: plan.device_bytes.hot,
            indexer: plan.device_bytes.indexer,
            tables: plan.device_bytes.tables,
            maps: plan.device_bytes.maps,
            side: plan.device_bytes.side,
            draft: plan.device_bytes.draft,
            resident: plan.device_bytes.resident,
        }),
        binding: plan.binding.iter().map(word).collect(),
        warnings: plan.warnings.clone(),
        concurrency: plan
            .concurrency
            .iter()
            .map(|row| proto::Concurrency {
                context: row.context,
                baseline: row.baseline,
                hisparse: row.hisparse,
                host_bytes: row.host_bytes,
                binding: word(&row.binding),
            })
            .collect(),
        engine: word(&plan.engine),
        hisparse: plan.hisparse,
        page_tokens: plan.page_tokens,
        kv_bytes: plan.kv_bytes,
        ratio: number(plan.ratio),
        physical_host_bytes: plan.physical_host_bytes,
        break_even_tokens: plan.break_even_tokens,
    }
}

fn resolved(resolved: Resolved) -> proto::ResolvedConfig {
    proto::ResolvedConfig {
        prefill_backend: resolved.prefill_backend.map(|backend| word(&backend)).unwrap_or_default(),
        decode_backend: resolved.decode_backend.map(|backend| word(&backend)).unwrap_or_default(),
        hot_rows: value(&resolved.hot_rows),
        ratio: value(&resolved.ratio),
        top_k: value(&resolved.top_k),
        kv_dtype: resolved.kv_dtype.unwrap_or_default(),
        page_size: resolved.page_size.unwrap_or_default(),
    }
}

/// Numbers and text as they are; absent where JSON says `null`. These fields hold nothing else.
fn value(json: &Value) -> Option<prost_types::Value> {
    use prost_types::value::Kind;
    let kind = match json {
        Value::Null => return None,
        Value::Number(number) => Kind::NumberValue(number.as_f64()?),
        Value::Bool(truth) => Kind::BoolValue(*truth),
        other => Kind::StringValue(other.as_str().map_or_else(|| other.to_string(), str::to_owned)),
    };
    Some(prost_types::Value { kind: Some(kind) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;

    fn fields_of(message: &str) -> BTreeSet<String> {
        let files = FileDescriptorSet::decode(proto::DESCRIPTORS).unwrap().file;
        let messages =
            files.into_iter().filter(|file| file.package() == "hisparse.v1").flat_map(|file| file.message_type);
        let found = messages.into_iter().find(|found| found.name() == message).unwrap();
        found.field.iter().map(|field| field.name().to_owned()).filter(|name| name != "model").collect()
    }

    #[test]
    fn requests_have_the_fields_that_the_strict_readers_know() {
        for (message, keys) in [
            ("GetBudgetRequest", hisparse_core::budget::read::KEYS),
            ("ValidateRequest", hisparse_core::validity::KEYS),
        ] {
            assert_eq!(fields_of(message), keys.iter().map(|key| (*key).to_owned()).collect(), "{message}");
        }
    }

    #[test]
    fn every_field_of_a_request_reaches_the_reader() {
        let message = proto::GetBudgetRequest {
            engine: Some("native".into()),
            sm: Some(90),
            ratio: Some(2.5),
            hisparse: Some(true),
            context: vec![8_192],
            ..Default::default()
        };
        let flags = plan_flags(message);
        assert_eq!(
            serde_json::to_string(&flags).unwrap(),
            r#"{"engine":"native","sm":90,"hisparse":true,"ratio":2.5,"context":[8192]}"#
        );
        assert!(plan_flags(proto::GetBudgetRequest::default()).is_empty());
    }
}
