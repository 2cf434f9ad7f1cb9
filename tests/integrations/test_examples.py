"""The examples run, in small, and say what happened."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.conftest import ROOT, environment

if TYPE_CHECKING:
    import pytest

EXAMPLES = ROOT / "examples"

SMALL_LAYER = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "index_topk": 128,
    "index_n_heads": 8,
    "first_k_dense_replace": 1,
}


def said(example: str, *flags: str) -> str:
    """What an example prints."""
    command = [sys.executable, str(EXAMPLES / example), *flags]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_decode_on_cpu_gives_equal_tokens_for_both_families() -> None:
    told = said("decode_on_cpu.py", "--prompt-tokens", "260", "--new-tokens", "6")
    assert told.count("tokens equal") == 4, told
    assert all(int(rows) > 0 for rows in re.findall(r"(\d+) rows swapped in", told)), told


def test_serve_and_decode_finishes_its_trace() -> None:
    told = said("serve_and_decode.py", "--requests", "5")
    assert re.search(r"^5 requests decoded, \d+ times refused .*, [1-9]\d* rows swapped in$", told, re.MULTILINE), told


def test_decode_on_gpu_holds_more_requests_than_the_device_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import decode_on_gpu  # noqa: PLC0415 - examples are no package

    monkeypatch.setattr(decode_on_gpu, "LAYER", SMALL_LAYER)
    monkeypatch.setattr(decode_on_gpu, "VOCABULARY", 512)
    flags = "--device cpu --layers 4 --experts 4 --context 1500 --steps 3 --batch 2"
    result = decode_on_gpu.main([*flags.split(), "--hot-rows", "128", "--kv-bytes", "9MiB", "--host-pool", "64MiB"])
    few, all_of_them = result["measured"]
    assert few["requests"] == result["requests_device_alone"] == 1, result
    assert all_of_them["requests"] > 3, result
    assert 0.1 < all_of_them["missed_share"] < 1, result
