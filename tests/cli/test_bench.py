"""`hisparse-svc bench` where there is no GPU, and what it prints and draws of a kept result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hisparse_svc.cli import app, bench

KEPT = Path(__file__).parents[2] / "benches" / "results" / "swap_in.json"


def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    find = bench.importlib.util.find_spec
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_torch(monkeypatch)
    assert app.run(["bench"]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "error: bench needs torch, which is not installed; `pip install 'hisparse-svc[engine]'`\n"


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: make setup-engine")
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: make setup-engine")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert app.run(["bench", "--json"]) == 4
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["rule"] == "torch finds no CUDA device here"


def test_every_wrong_flag_is_named_before_a_gpu_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _without_torch(monkeypatch)
    wrong = {
        "--out": "/nowhere/a.json",
        "--plots": "/nowhere",
        "--requests": "128,0",
        "--misses": "205,many",
        "--row-bytes": "650",
        "--layouts": "tidy",
        "--host-memory": "much",
    }
    assert app.run(["bench", "--json", *(word for pair in wrong.items() for word in pair)]) == 2
    fields = [problem["field"] for problem in json.loads(capsys.readouterr().out)["problems"]]
    assert fields == list(wrong)


def test_a_table_says_how_far_from_memcpy_and_the_best_ordered_gather(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(KEPT.read_text(encoding="utf-8"))
    document |= {"checks": 4}
    bench.show(document, [Path("kept.json")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Written: kept.json"
    assert lines[1].split()[-4:] == ["ordered", "%", "memcpy", "%"]
    row = next(row for row in document["swap_in"] if row["misses"])
    shape = f"{row['row_bytes']} B   {row['requests']} × {row['misses']}".split()
    shown = next(line.split() for line in lines if line.split()[:6] == [*shape, row["layout"]])
    assert [shown[-3], shown[-1]] == [f"{row['plain_over_gather']:.0%}", f"{row['memcpy_over_gather']:.0%}"]
    assert len(lines) >= len(document["swap_in"])
    assert lines[-1].startswith(document["gpu"])


def test_a_result_is_drawn_once_per_size_of_rows(tmp_path: Path) -> None:
    from hisparse_svc.bench import plots  # noqa: PLC0415 - beside its one use

    document = json.loads(KEPT.read_text(encoding="utf-8"))
    drawn = plots.draw(document, tmp_path)
    sizes = dict.fromkeys(row["row_bytes"] for row in document["swap_in"])
    assert [path.name for path in drawn] == [f"swap_in_{size}.png" for size in sizes]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
