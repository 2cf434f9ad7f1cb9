//! A model, parsed once and then planned for as often as wanted.

use hisparse_core::error::{Problem, Problems};
use hisparse_core::model::Model;
use hisparse_core::model::presets::{self, Preset};
use pyo3::prelude::*;

use crate::convert::{serialised, word};
use crate::error::OrInvalidInput;
use crate::view::view;

view!(
    /// A sparse-attention model as the planner sees it: shapes only, no weights.
    PyModel of Model, "Model" {
        /// Preset or folder name, else the architecture's.
        name: &str = |model| &model.name;
        /// Its family: `deepseek_v32`, `glm_moe_dsa`, `deepseek_v4`, `minimax_m3`, `generic_dsa`.
        family: String = |model| word(&model.family);
        /// The config's first `architectures` entry, or empty.
        architecture: &str = |model| &model.architecture;
        /// Main layers, without draft layers.
        layers: usize = |model| model.layers.len();
        /// Layers with an indexer cache.
        indexer_layers: u64 = |model| model.indexer_layers();
        /// Layers whose main KV may live in host memory.
        sparse_layers: u64 = |model| model.sparse_layers();
        /// Draft (next-token prediction) layers the checkpoint carries.
        draft_layers: u64 = |model| model.draft_layers;
        /// Tokens the indexer keeps per step.
        top_k: u64 = |model| model.top_k;
        /// Most tokens that one query row attends to: the top-k, and those of a pool of indexer keys that is not full.
        picks_per_row: u64 = |model| model.picks_per_row();
        /// Longest context the model was made for, in tokens.
        context_tokens: u64 = |model| model.context_tokens.get();
        /// What a reader of its plans should know, each a full sentence.
        warnings: Vec<String> = |model| model.warnings.clone();
    }

    /// Read the text of a `config.json`; an empty `name` takes the architecture's.
    #[staticmethod]
    fn from_json_text(py: Python<'_>, name: &str, text: &str) -> PyResult<Self> {
        py.detach(|| Model::from_json_text(name, text)).or_invalid_input(py).map(Self)
    }

    /// Read a bundled preset by its name or an alias.
    #[staticmethod]
    fn preset(py: Python<'_>, name: &str) -> PyResult<Self> {
        presets::preset(name).or_invalid_input(py).map(Self)
    }

    /// Everything that is known of the model, as plain data.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        serialised(py, &self.0)
    }
);

/// A model, or the problems (field, value, rule, remedy) that reading it gave.
#[derive(FromPyObject)]
pub(crate) enum ModelOrProblems<'py> {
    /// Read.
    Model(PyRef<'py, PyModel>),
    /// Refused.
    Problems(Vec<(String, String, String, String)>),
}

impl ModelOrProblems<'_> {
    /// As the core takes it.
    pub(crate) fn into_result(self) -> Result<Model, Problems> {
        match self {
            Self::Model(model) => Ok(model.0.clone()),
            Self::Problems(list) => {
                let mut problems = Problems::new();
                for (field, value, rule, remedy) in list {
                    problems.push(Problem::new(field, value, rule, remedy));
                }
                Err(problems)
            }
        }
    }
}

view!(
    /// A bundled model.
    PyPreset of Preset, "Preset" {
        /// Its name on the command line.
        name: &'static str = |preset| preset.name;
        /// Other names it answers to.
        aliases: Vec<&'static str> = |preset| preset.aliases.to_vec();
        /// Its family.
        family: String = |preset| word(&preset.family);
        /// Where its numbers come from, and what is not certain about them.
        note: &'static str = |preset| preset.note;
    }

    /// Read it.
    fn load(&self, py: Python<'_>) -> PyResult<PyModel> {
        PyModel::preset(py, self.0.name)
    }
);

/// Every bundled model, in the order they are offered.
#[pyfunction(name = "presets")]
pub(crate) fn all_presets() -> Vec<PyPreset> {
    presets::ALL.iter().copied().map(PyPreset).collect()
}
