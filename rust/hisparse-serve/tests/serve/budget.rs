//! The planner and the validator over the wire.

use hisparse_core::budget::{PlanRequest, plan};
use hisparse_core::ledger::NodeCapacity;
use hisparse_core::model::presets::preset;
use hisparse_serve::proto::budget_service_client::BudgetServiceClient;
use hisparse_serve::proto::{GetBudgetRequest, ListModelsRequest, ValidateRequest};
use hisparse_serve::{Config, NodeConfig, Server};
use serde_json::json;
use tonic::Code;
use tonic::transport::Channel;

use crate::{config, connect, refusal, serve};

async fn client(served: &crate::Served) -> BudgetServiceClient<Channel> {
    BudgetServiceClient::new(served.channel().await)
}

fn question() -> GetBudgetRequest {
    GetBudgetRequest {
        model: "glm-5.2".into(),
        kv_bytes: Some(20 << 30),
        host_pool: Some(160 << 30),
        hot_rows: Some(4_096),
        context: vec![131_072],
        ..GetBudgetRequest::default()
    }
}

#[tokio::test]
async fn a_budget_over_the_wire_is_the_planners_to_the_byte() {
    let served = serve(10, 4);
    let answer = client(&served).await.get_budget(question()).await.unwrap().into_inner();
    let flags = json!({"kv_bytes": 20_u64 << 30, "host_pool": 160_u64 << 30, "hot_rows": 4_096, "context": [131_072]});
    let request = PlanRequest::from_json(flags.as_object().unwrap()).unwrap();
    let expected = plan(&preset("glm-5.2").unwrap(), &request).unwrap();
    assert_eq!((answer.host_bytes, answer.seats), (expected.host_bytes, expected.seats));
    assert_eq!((answer.logical_tokens, answer.hot_rows), (expected.logical_tokens, expected.hot_rows));
    assert_eq!(answer.device_bytes.unwrap().hot, expected.device_bytes.hot);
    assert_eq!(answer.concurrency[0].hisparse, expected.concurrency[0].hisparse);
    assert_eq!((answer.model.unwrap().family.as_str(), answer.engine.as_str()), ("glm_moe_dsa", "native"));
    let layout = answer.layout.unwrap();
    assert_eq!((layout.kv_dtype.as_str(), layout.row_bytes), ("fp8_e4m3", expected.layout.row_bytes));
}

#[tokio::test]
async fn problems_of_model_and_flags_come_back_together_under_the_flags_names() {
    let served = serve(10, 4);
    let request =
        GetBudgetRequest { model: "glm-55".into(), hot_rows: Some(0), sm: Some(1 << 40), ..Default::default() };
    let (code, _, details) = refusal(&client(&served).await.get_budget(request).await.unwrap_err());
    assert_eq!(code, Code::InvalidArgument);
    let fields: Vec<_> = details.bad_request().unwrap().field_violations.iter().map(|bad| bad.field.clone()).collect();
    assert_eq!(fields, ["MODEL", "--sm", "--hot-rows"]);
    let broken = GetBudgetRequest { model: "{\"model_type\":".into(), ..Default::default() };
    assert_eq!(client(&served).await.get_budget(broken).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_node_tells_the_budget_it_was_started_from() {
    let home = tempfile::tempdir().unwrap();
    let flags = json!({"kv_bytes": "20GiB", "host_pool": "1GiB"});
    let request = PlanRequest::from_json(flags.as_object().unwrap()).unwrap();
    let budget = plan(&preset("glm-5.2").unwrap(), &request).unwrap();
    let node = NodeConfig::of_plan(&budget, NodeCapacity::of_plan(&budget, None, None));
    let _running = Server::start(Config { node, ..config(&home, 1, 1) }).unwrap();
    let mut client = BudgetServiceClient::new(connect(&home.path().join("h.sock")).await);
    let own = client.get_budget(GetBudgetRequest::default()).await.unwrap().into_inner();
    assert_eq!((own.host_bytes, own.model.unwrap().name), (budget.host_bytes, "glm-5.2".to_owned()));
    let flagged = GetBudgetRequest { hot_rows: Some(4_096), ..Default::default() };
    assert_eq!(client.get_budget(flagged).await.unwrap_err().code(), Code::InvalidArgument);

    let without = serve(10, 4);
    let mut client = BudgetServiceClient::new(without.channel().await);
    assert_eq!(client.get_budget(GetBudgetRequest::default()).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_configuration_is_judged_and_a_wrong_one_is_an_answer_not_an_error() {
    let served = serve(10, 4);
    let mut client = client(&served).await;
    let right = ValidateRequest { model: "glm-5.2".into(), sm: Some(90), ..Default::default() };
    let verdict = client.validate(right).await.unwrap().into_inner();
    assert!(verdict.valid && verdict.problems.is_empty(), "{verdict:?}");
    assert!(!verdict.resolved.unwrap().decode_backend.is_empty());
    let wrong = ValidateRequest {
        decode_backend: Some("no such".into()),
        hisparse_config: Some("{".into()),
        ..ValidateRequest::default()
    };
    let verdict = client.validate(wrong).await.unwrap().into_inner();
    assert!(!verdict.valid && verdict.problems.len() >= 2, "{verdict:?}");
    assert!(verdict.problems.iter().all(|problem| !problem.remedy.is_empty()), "{verdict:?}");
}

#[tokio::test]
async fn every_preset_is_listed() {
    let served = serve(10, 4);
    let models = client(&served).await.list_models(ListModelsRequest {}).await.unwrap().into_inner().models;
    assert_eq!(models.len(), hisparse_core::model::presets::ALL.len());
    let glm = models.iter().find(|model| model.name == "glm-5.2").unwrap();
    assert!(glm.layers > 0 && glm.indexer_layers > 0 && glm.top_k == 2_048, "{glm:?}");
}
