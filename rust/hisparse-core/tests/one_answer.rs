//! The answers that every front end gives: Python and the command line are held to the same file by their own tests.

use hisparse_core::budget::plan_of_map;
use hisparse_core::model::presets::preset;
use serde_json::{Value, json};

#[test]
fn rust_gives_the_answers_that_python_and_the_command_line_are_held_to() {
    let cases: Value = serde_json::from_str(include_str!("../../../tests/golden/plans.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let model = preset(case["model"].as_str().unwrap()).unwrap();
        let plan = plan_of_map(Ok(&model), case["question"].as_object().unwrap()).unwrap();
        assert_eq!(json!(plan), case["plan"], "{} {}; `make docs` writes the answers", case["model"], case["question"]);
    }
}
