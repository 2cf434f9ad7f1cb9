"""What commands print: one JSON document and nothing else, the names that scripts rely on, text for people."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Run

ANSWERS = {
    "plan": ["plan", "glm-5.2", "--context", "131072"],
    "validate": ["validate", "glm-5.2"],
    "models": ["models"],
    "doctor": ["doctor"],
    "completion": ["completion", "bash"],
}
REFUSALS = {
    "plan": ["plan", "glm-5.2", "--ratio", "0"],
    "validate": ["validate", "glm-5.2", "--page-size", "48"],
    "usage": ["plan", "glm-5.2", "--no-such-flag"],
    "command": ["plam"],
    "doctor": ["doctor", "--assume-memory", "lots"],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_json_is_one_document_and_nothing_else(cli: Callable[..., Run], name: str) -> None:
    done = cli(*ANSWERS[name], "--json")
    assert (done.code, done.err) == (0, "")
    assert isinstance(done.document, dict)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_json_on_stdout_and_errors_on_stderr(cli: Callable[..., Run], name: str) -> None:
    done = cli(*REFUSALS[name], "--json")
    assert done.code == 2
    problems = done.document["problems"]
    assert problems
    assert len(problems) == len(done.errors)
    assert all(set(problem) == {"field", "value", "rule", "remedy"} for problem in problems)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_without_json_prints_no_traceback(cli: Callable[..., Run], name: str) -> None:
    done = cli(*REFUSALS[name])
    assert done.code == 2
    assert done.errors


def test_debug_adds_the_traceback(cli: Callable[..., Run]) -> None:
    done = cli("plan", "glm-5.2", "--ratio", "0", "--debug")
    assert done.code == 2
    assert "Traceback" in done.err
    assert "error: --ratio" in done.err


def test_a_plan_has_every_name_of_the_contract(cli: Callable[..., Run]) -> None:
    document = cli("plan", "glm-5.2", "--context", "131072", "--json").document
    names = {
        "model": {"name", "family", "layers", "indexer_layers", "top_k"},
        "layout": {"kv_dtype", "row_bytes", "row_stride", "indexer_bytes"},
        "device_bytes": {"hot", "indexer", "tables", "maps", "side", "draft", "resident"},
    }
    for name, inner in names.items():
        assert inner <= set(document[name]), name
    counts = {
        "cell_bytes",
        "device_tokens",
        "logical_tokens",
        "host_bytes",
        "hot_rows",
        "seats",
        "max_request_tokens",
        "max_req_len",
        "side_buffer_tokens",
    }
    assert all(isinstance(document[name], int) for name in counts)
    assert isinstance(document["binding"], list)
    assert isinstance(document["warnings"], list)
    (row,) = document["concurrency"]
    assert {"context", "baseline", "hisparse", "host_bytes", "binding"} <= set(row)


def test_a_verdict_has_every_name_of_the_contract(cli: Callable[..., Run]) -> None:
    document = cli("validate", "glm-5.2", "--page-size", "48", "--json").document
    assert {"valid", "resolved", "problems", "warnings"} <= set(document)
    assert {"prefill_backend", "decode_backend", "hot_rows", "ratio", "top_k"} <= set(document["resolved"])
    assert {"field", "value", "rule", "remedy"} <= set(document["problems"][0])


def test_text_for_people_fits_a_page_and_ends_with_warnings(cli: Callable[..., Run]) -> None:
    done = cli("plan", "glm-5.2", "--engine", "sglang", "--context", "1048576")
    assert done.code == 0
    tables, warned, _ = done.out.partition("warning: ")
    assert warned
    assert "warning:" not in tables
    assert max(map(len, done.out.splitlines())) <= 100
    assert "\x1b[" not in done.out, "no colour where nobody looks"


@pytest.mark.parametrize("name", ["plan", "validate", "models", "doctor", "completion"])
def test_every_command_has_help(cli: Callable[..., Run], name: str) -> None:
    done = cli(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert name in done.out


def test_alone_the_program_prints_its_help(cli: Callable[..., Run]) -> None:
    done = cli()
    assert done.code == 0
    assert "validate" in done.out


def test_version_is_one_line(cli: Callable[..., Run]) -> None:
    assert re.fullmatch(r"hisparse-svc \d+\.\d+\.\d+\n", cli("--version").out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion_script(cli: Callable[..., Run], shell: str) -> None:
    done = cli("completion", shell)
    assert done.code == 0
    assert "_HISPARSE_SVC_COMPLETE" in done.out


def test_completion_knows_presets_flags_and_words(cli: Callable[..., Run]) -> None:
    def offers(*words: str) -> str:
        line = ["hisparse-svc", *words]
        env = {
            "_HISPARSE_SVC_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(line),
            "COMP_CWORD": str(len(line) - 1),
        }
        return cli(env=env).out

    assert "plain,deepseek-v3.2" in offers("plan", "deep")
    assert "plain,--hot-rows" in offers("plan", "glm-5", "--hot")
    assert "plain,fp8_e4m3" in offers("plan", "glm-5", "--kv-dtype", "fp8")


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_plot_is_drawn(cli: Callable[..., Run], tmp_path: Path, suffix: str, start: bytes) -> None:
    file = tmp_path / f"plan{suffix}"
    done = cli("plan", "glm-5.2", "--plot", str(file), "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["concurrency"]
    assert file.read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["plan.pdf", "no/such/folder/plan.png"])
def test_a_plot_that_cannot_be_written_is_refused_first(cli: Callable[..., Run], tmp_path: Path, name: str) -> None:
    done = cli("plan", "glm-5.2", "--plot", str(tmp_path / name))
    assert done.code == 2
    assert done.out == ""
    assert done.errors[0].startswith("--plot is ")


def test_a_reader_that_leaves_early_gets_no_error() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "hisparse_svc", "models", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    told = writer.stderr.read()
    writer.stderr.close()
    writer.wait(timeout=60)
    assert told == b""
