"""Real field names, by folder: the sparse families are accepted, dense models refused, both key styles agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hisparse_svc
import pytest

from tests.conftest import SAMPLES, shared

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())


def accept_or_refuse(folder: Path) -> None:
    if folder.name.startswith("reject_"):
        with pytest.raises(hisparse_svc.InvalidInput) as refusal:
            hisparse_svc.load_model(folder)
        assert "index_topk" in str(refusal.value)
    else:
        assert hisparse_svc.load_model(folder).sparse_layers > 0


@pytest.mark.parametrize("name", FOLDERS)
def test_a_sample_is_taken_for_what_it_is(name: str) -> None:
    accept_or_refuse(SAMPLES / name)


@pytest.mark.parametrize("name", [name for name in FOLDERS if name.endswith("_checkpoint_keys")])
def test_both_key_styles_give_one_plan(name: str) -> None:
    documents = []
    for folder in (SAMPLES / name, SAMPLES / name.removesuffix("_checkpoint_keys")):
        document = hisparse_svc.plan(folder, context=[131072]).to_dict()
        del document["model"]["name"]
        documents.append(document)
    assert documents[0] == documents[1]


def test_every_shared_folder_is_taken_for_what_it_is() -> None:
    for folder in sorted(path for path in shared("model_configs").iterdir() if path.is_dir()):
        accept_or_refuse(folder)


def test_a_folder_names_its_model() -> None:
    assert hisparse_svc.load_model(SAMPLES / "glm_5_2").name == "glm_5_2"
    assert hisparse_svc.load_model(str(SAMPLES / "glm_5_2" / "config.json")).name == "glm_5_2"


def test_a_model_that_is_read_already_comes_back_as_it_is() -> None:
    model = hisparse_svc.load_model("glm-5.2")
    assert hisparse_svc.load_model(model) is model
