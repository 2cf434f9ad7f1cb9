"""Every kind of bad input, as a user would type it: exit code 2, one line per problem, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Run


def refuse(done: Run, field: str, *words: str) -> None:
    """Holds a command to a refusal that names `field` and says `words`."""
    assert done.code == 2, done
    matching = [error for error in done.errors if error.startswith(f"{field} is ")]
    assert matching, f"no error on {field}: {done.errors}"
    for word in words:
        assert any(word in error for error in matching), f"{word!r} is in none of {matching}"
    assert all("; " in error for error in done.errors), f"an error without a remedy: {done.errors}"


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", ["reject_llama", "reject_deepseek_v3", "reject_qwen3", "reject_mixtral"])
@pytest.mark.parametrize("command", ["plan", "validate"])
def test_a_dense_model_is_told_which_fields_it_lacks(
    cli: Callable[..., Run], config: Callable[..., str], command: str, sample: str
) -> None:
    done = cli(command, config(sample))
    refuse(done, "index_topk", "index_topk", "index_n_heads", "index_head_dim")
    assert len(done.errors) == 1, "one error, not one per field"


TEXTS = {
    "empty": ("", "empty"),
    "only_space": (" \n", "empty"),
    "not_json": ("{'a': 1}", "must be JSON"),
    "cut_short": ('{"model_type": "glm_moe_dsa"', "must be JSON"),
    "a_list": ("[1, 2]", "must be a JSON object"),
    "a_number": ("7", "must be a JSON object"),
    "deeply_nested": ("[" * 100_000, "must be JSON"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_config_that_is_no_json_object_is_refused(
    cli: Callable[..., Run], config: Callable[..., str], kind: str
) -> None:
    text, word = TEXTS[kind]
    refuse(cli("plan", config(text=text)), "config.json", word)


def test_a_missing_config_is_refused(cli: Callable[..., Run], tmp_path: Path) -> None:
    refuse(cli("plan", str(tmp_path / "config.json")), "MODEL", "hisparse-svc models")


def test_a_folder_without_a_config_is_refused(cli: Callable[..., Run], tmp_path: Path) -> None:
    refuse(cli("plan", str(tmp_path)), "MODEL", "is a folder without a config.json")


def test_a_binary_config_is_refused(cli: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    refuse(cli("plan", str(tmp_path)), "MODEL", "UTF-8")


def test_a_config_above_the_size_bound_is_refused(cli: Callable[..., Run], config: Callable[..., str]) -> None:
    refuse(cli("plan", config(text='{"a": "' + "x" * (4 << 20) + '"}')), "MODEL", "bytes")


def test_a_number_that_json_cannot_write_is_named(cli: Callable[..., Run], config: Callable[..., str]) -> None:
    done = cli("plan", config(text='{"index_topk": NaN, "rope": {"factors": [1, -Infinity]}}'))
    refuse(done, "index_topk", "is NaN", "JSON has no NaN")
    refuse(done, "rope.factors[1]", "is -Infinity")


def test_a_misspelt_preset_names_the_nearest(cli: Callable[..., Run]) -> None:
    refuse(cli("plan", "deepsek-v3.2"), "MODEL", "did you mean deepseek-v3.2?")


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "zero_layers": ({"num_hidden_layers": 0}, "num_hidden_layers"),
    "negative_layers": ({"num_hidden_layers": -78}, "num_hidden_layers"),
    "a_million_layers": ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
    "layers_beyond_64_bits": ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
    "layers_true": ({"num_hidden_layers": True}, "num_hidden_layers"),
    "layers_text": ({"num_hidden_layers": "78"}, "num_hidden_layers"),
    "negative_latent_width": ({"kv_lora_rank": -512}, "kv_lora_rank"),
    "negative_rotary_width": ({"qk_rope_head_dim": -64}, "qk_rope_head_dim"),
    "negative_index_width": ({"index_head_dim": -1}, "index_head_dim"),
    "fractional_width": ({"kv_lora_rank": 512.5}, "kv_lora_rank"),
    "a_trillion_tokens": ({"max_position_embeddings": 10**12}, "max_position_embeddings"),
    "zero_top_k": ({"index_topk": 0}, "index_topk"),
    "unknown_dtype": ({"dtype": "int3"}, "dtype"),
    "short_pattern": ({"index_topk_pattern": "FSF", "index_topk_freq": None}, "index_topk_pattern"),
    "lower_case_pattern": (
        {"index_topk_pattern": "f" + "s" * 77, "index_topk_freq": None},
        "index_topk_pattern",
    ),
    "pattern_starts_shared": (
        {"index_topk_pattern": "S" + "F" * 77, "index_topk_freq": None},
        "index_topk_pattern",
    ),
}


@pytest.mark.parametrize("kind", FIELDS)
def test_a_wrong_field_of_a_config_is_named(cli: Callable[..., Run], config: Callable[..., str], kind: str) -> None:
    changes, field = FIELDS[kind]
    refuse(cli("plan", config("glm_5", **changes)), field)


def test_all_wrong_fields_of_a_config_come_together(cli: Callable[..., Run], config: Callable[..., str]) -> None:
    done = cli("plan", config("glm_5", num_hidden_layers=0, kv_lora_rank=-1, dtype="int3", index_topk="many"))
    for field in ("num_hidden_layers", "kv_lora_rank", "dtype", "index_topk"):
        refuse(done, field)


# --- flags of `plan` -------------------------------------------------------------------------------------------------

FLAGS: dict[str, tuple[list[str], str, str]] = {
    "hot_rows_below_top_k": (["--hot-rows", "1024"], "--hot-rows", "2048"),
    "hot_rows_above_the_bound": (["--hot-rows", "32832"], "--hot-rows", "32768"),
    "hot_rows_not_page_aligned": (["--hot-rows", "4100"], "--hot-rows", "4096"),
    "hot_rows_true": (["--hot-rows", "true"], "--hot-rows", "whole number"),
    "hot_rows_text": (["--hot-rows", "many"], "--hot-rows", "whole number"),
    "hot_rows_negative": (["--hot-rows", "-4096"], "--hot-rows", "whole number"),
    "hot_rows_beyond_64_bits": (["--hot-rows", "9" * 30], "--hot-rows", "64 bits"),
    "ratio_zero": (["--ratio", "0"], "--ratio", "from 1"),
    "ratio_minus_one": (["--ratio", "-1"], "--ratio", "from 1"),
    "ratio_nan": (["--ratio", "nan"], "--ratio", "finite"),
    "ratio_infinite": (["--ratio", "inf"], "--ratio", "finite"),
    "ratio_text": (["--ratio", "four"], "--ratio", "from 1"),
    "ratio_beyond_the_bound": (["--ratio", "1e9"], "--ratio", "10000"),
    "ratio_and_host_pool": (["--ratio", "4", "--host-pool", "1GiB"], "--ratio", "--host-pool"),
    "draft_depth_8": (["--mtp", "8"], "--mtp", "4"),
    "draft_depth_negative": (["--mtp", "-1"], "--mtp", "0"),
    "page_size_48": (["--page-size", "48"], "--page-size", "64"),
    "unknown_dtype": (["--kv-dtype", "int4"], "--kv-dtype", "fp8_e4m3"),
    "unknown_engine": (["--engine", "tgi"], "--engine", "sglang"),
    "unknown_gpu": (["--gpu", "h300"], "--gpu", "h200"),
    "size_text": (["--host-pool", "plenty"], "--host-pool", "160GiB"),
    "size_in_G": (["--host-pool", "20G"], "--host-pool", "did you mean 20GiB?"),
    "size_in_PiB": (["--kv-bytes", "2PiB"], "--kv-bytes", "KiB, MiB, GiB or TiB"),
    "sm_9": (["--sm", "9"], "--sm", "from 50"),
    "sm_zero": (["--sm", "0"], "--sm", "from 50"),
    "weights_without_a_gpu": (["--weights", "10GiB", "--kv-bytes", "20GiB"], "--weights", "--gpu"),
    "size_zero": (["--kv-bytes", "0"], "--kv-bytes", "160GiB"),
    "size_negative": (["--kv-bytes", "-1GiB"], "--kv-bytes", "160GiB"),
    "context_zero": (["--context", "0"], "--context", "from 1"),
    "context_a_trillion": (["--context", "1000000000000"], "--context", "from 1"),
    "stage_backwards": (["--stage", "39:0"], "--stage", "A:B"),
    "tp_zero": (["--tp", "0"], "--tp", "from 1"),
    "host_pool_beyond_the_machine": (["--host-pool", "64GiB", "--assume-memory", "32GiB"], "--host-pool", "32 GiB"),
}


@pytest.mark.parametrize("kind", FLAGS)
def test_a_wrong_flag_of_plan_is_refused(cli: Callable[..., Run], kind: str) -> None:
    arguments, field, word = FLAGS[kind]
    refuse(cli("plan", "glm-5.2", *arguments), field, word)


def test_a_length_beyond_64_bits_is_refused_once(cli: Callable[..., Run]) -> None:
    done = cli("plan", "glm-5.2", "--context", "9" * 20)
    refuse(done, "--context[0]", "64 bits")
    assert len(done.errors) == 1, done.errors


def test_a_preset_without_its_dot_is_told_the_one_that_is_meant(cli: Callable[..., Run]) -> None:
    refuse(cli("plan", "glm-52"), "MODEL", "glm-5.2?")


def test_problems_of_the_model_and_of_every_flag_come_together(cli: Callable[..., Run]) -> None:
    done = cli("plan", "glm-52", "--ratio", "nan", "--hot-rows", "true", "--tp", "0", "--kv-dtype", "int4")
    for field in ("MODEL", "--ratio", "--hot-rows", "--tp", "--kv-dtype"):
        refuse(done, field)


def test_a_budget_that_admits_nothing_says_so(cli: Callable[..., Run]) -> None:
    done = cli("plan", "glm-5.2", "--kv-bytes", "64MiB")
    assert done.code == 2
    assert any("--kv-bytes" in error for error in done.errors), done.errors


# --- `validate` ------------------------------------------------------------------------------------------------------

CONFIGS: dict[str, tuple[str, str, str]] = {
    "unknown_key": ('{"device_bufer_size": 4096}', "device_bufer_size", "did you mean device_buffer_size?"),
    "not_json": ("{top_k: 1}", "", "JSON"),
    "a_list": ("[2048]", "", "object"),
    "a_number": ("2048", "", "object"),
    "hot_rows_below_top_k": ('{"device_buffer_size": 1024}', "device_buffer_size", "2048"),
    "hot_rows_above_the_bound": ('{"device_buffer_size": 40000}', "device_buffer_size", "32768"),
    "hot_rows_not_page_aligned": ('{"device_buffer_size": 4100}', "device_buffer_size", "4096"),
    "hot_rows_true": ('{"device_buffer_size": true}', "device_buffer_size", "number"),
    "hot_rows_text": ('{"device_buffer_size": "2048"}', "device_buffer_size", "number"),
    "ratio_zero": ('{"host_to_device_ratio": 0}', "host_to_device_ratio", "1"),
    "ratio_minus_one": ('{"host_to_device_ratio": -1}', "host_to_device_ratio", "1"),
    "ratio_nan": ('{"host_to_device_ratio": NaN}', "host_to_device_ratio", "finite"),
    "ratio_text": ('{"host_to_device_ratio": "2"}', "host_to_device_ratio", "number"),
    "block_size_256": ('{"swap_in_block_size": 256}', "swap_in_block_size", "512"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_wrong_hisparse_config_is_refused(cli: Callable[..., Run], kind: str) -> None:
    text, key, word = CONFIGS[kind]
    field = f"--hisparse-config.{key}" if key else "--hisparse-config"
    refuse(cli("validate", "glm-5.2", "--hisparse-config", text), field, word)


def test_a_backend_that_is_not_legal_here_lists_all_that_are(cli: Callable[..., Run]) -> None:
    done = cli("validate", "glm-5.2", "--sm", "90", "--kv-dtype", "fp8_e4m3", "--decode-backend", "tilelang")
    refuse(done, "--decode-backend", "flashmla_kv", "triton", "reference")


def test_a_host_pool_beyond_this_machine_is_refused(cli: Callable[..., Run]) -> None:
    refuse(cli("validate", "glm-5.2", "--host-pool", "1023TiB"), "--host-pool", "this machine has ")


def test_a_host_pool_is_refused_for_the_kv_type_it_was_measured_by(cli: Callable[..., Run]) -> None:
    refuse(cli("validate", "glm-5.2", "--host-pool", "1KiB"), "--host-pool", "tokens of bfloat16 KV")


def test_a_page_size_that_is_no_page_is_refused(cli: Callable[..., Run]) -> None:
    refuse(cli("validate", "glm-5.2", "--page-size", "48"), "--page-size", "64")


def test_all_problems_of_a_configuration_come_together(cli: Callable[..., Run]) -> None:
    text = '{"topk": 2048, "device_buffer_size": 4100, "host_to_device_ratio": 0, "swap_in_block_size": 256}'
    done = cli("validate", "glm-5.2", "--hisparse-config", text, "--decode-backend", "tilelang", "--heads", "x")
    for field in (
        "--hisparse-config.topk",
        "--hisparse-config.device_buffer_size",
        "--hisparse-config.host_to_device_ratio",
        "--hisparse-config.swap_in_block_size",
        "--decode-backend",
        "--heads",
    ):
        refuse(done, field)


# --- the command line itself -----------------------------------------------------------------------------------------

USAGE = {
    "unknown_flag": (["plan", "glm-5.2", "--hot-row", "1"], "did you mean --hot-rows?"),
    "unknown_command": (["plam"], "did you mean plan?"),
    "missing_model": (["plan"], "hisparse-svc plan --help"),
    "missing_value": (["plan", "glm-5.2", "--ratio"], "hisparse-svc --help"),
    "extra_argument": (["plan", "glm-5.2", "glm-5"], "hisparse-svc plan --help"),
    "unknown_shell": (["completion", "tcsh"], "bash, zsh, fish"),
}


@pytest.mark.parametrize("kind", USAGE)
def test_a_wrong_command_line_says_what_to_do(cli: Callable[..., Run], kind: str) -> None:
    arguments, word = USAGE[kind]
    done = cli(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert len(done.errors) == 1
    assert word in done.errors[0]
