"""What the installed transformers writes as a config.json, read as the model that it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hisparse_svc
import pytest
import transformers
from hisparse_svc import InvalidInput

from tests.conftest import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def written(folder: Path, kind: str, **values: Any) -> Path:
    """Let transformers write the configuration of this class; skip where it has none."""
    made = getattr(transformers, kind, None)
    if made is None:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    made(**values).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "values", "sample"),
    [
        ("DeepseekV32Config", {"num_nextn_predict_layers": 1}, SAMPLES / "deepseek_v32"),
        ("GlmMoeDsaConfig", {"num_nextn_predict_layers": 1}, SAMPLES / "glm_5"),
    ],
)
def test_a_class_of_the_known_families_is_read_as_its_sample(
    kind: str, values: dict[str, Any], sample: Path, tmp_path: Path
) -> None:
    there = hisparse_svc.plan(written(tmp_path, kind, **values), context=131_072).to_dict()
    here = hisparse_svc.plan(sample, context=131_072).to_dict()
    del there["model"]["name"], here["model"]["name"]
    assert there == here


def test_glm_5_3_flash_is_read_alike_with_the_names_of_checkpoint_and_class(tmp_path: Path) -> None:
    preset = hisparse_svc.load_model("glm-5.3-flash")
    words = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 11 + ["linear_attention"]
    for name, given in [("class", {}), ("checkpoint", {"layer_types": words})]:
        model = hisparse_svc.load_model(
            written(tmp_path / name, "Glm5NextConfig", text_config={"index_kpool": 4, **given})
        )
        assert (model.layers, model.indexer_layers) == (preset.layers, preset.indexer_layers), name


def test_qwen4_exp_is_refused_as_sparse_attention_of_another_kind(tmp_path: Path) -> None:
    fields = {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 2_048,
        "indexer_compress_ratio": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    }
    folder = written(tmp_path, "Qwen4ExpTextConfig", **fields)
    with pytest.raises(InvalidInput, match="indexer_budget is 2048: belongs to the sparse attention of Qwen4-Exp"):
        hisparse_svc.load_model(folder)
