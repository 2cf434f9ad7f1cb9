"""Tables of measured figures are those of the JSON that is kept: none is typed by hand and forgotten."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.docs.pages import ROOT

Row = dict[str, Any]


def _kept(name: str) -> list[Row]:
    rows: list[Row] = json.loads((ROOT / f"benches/results/{name}.json").read_text(encoding="utf-8"))["rows"]
    return rows


def _page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")


def _lines(page: str, first_cell: str) -> list[str]:
    return [line for line in page.splitlines() if re.match(rf"\| {first_cell} \|", line)]


def _tokens(count: int) -> str:
    return f"{count >> 20} M" if count >= 1 << 20 else f"{count >> 10} K"


def _us(timed: Row) -> str:
    return f"{timed['us']:,.0f}" if timed["us"] >= 1000 else f"{timed['us']:.1f}"


def test_the_table_of_the_indexer_is_what_was_measured() -> None:
    rows = _kept("indexer")
    wanted = [
        f"| {_tokens(row['context'])} × {row['batch']} | {_us(row['read'])} µs | {_us(row['logits'])} "
        f"| {row['logits_gb_s']:,} | {row['logits_over_read']:.2f} | {_us(row['deep_gemm'])} "
        f"| {row['deep_gemm_over_logits']:.2f} | {_us(row['top_k'])} | {_us(row['both'])} | {row['logits_error']:.0e} |"
        for row in rows
    ]
    page = _page("indexer")
    assert _lines(page, r"\d+ [KM] × \d+") == wanted
    for row in rows:
        assert row["logits_gb_s"] == round(row["batch"] * row["context"] * 132 / row["logits"]["us"] / 1e3)
        assert abs(row["logits_over_read"] - row["logits"]["us"] / row["read"]["us"]) < 2e-3
        assert abs(row["deep_gemm_over_logits"] - row["deep_gemm"]["us"] / row["logits"]["us"]) < 2e-3
    asked = next(row for row in rows if (row["context"], row["batch"]) == (65_536, 64))
    for cell in (
        f"against the DeepGEMM wheel | 0.8 | 1.0 | {asked['deep_gemm_over_logits']:.2f} |",
        f"against the time to read the keys | | 1.3 | {asked['logits_over_read']:.2f} |",
        f"64 requests | 25 µs | 12 µs | {_us(asked['top_k'])} µs;",
    ):
        assert cell in page


def test_the_table_of_overlap_is_what_was_measured() -> None:
    rows, page = _kept("overlap"), _page("overlap")

    def way(row: Row, name: str) -> str:
        ratio = f"{row[f'{name}_over_longest']:.2f}"
        return f"{row[name]['us']:.1f} ({f'**{ratio}**' if row['chosen'] == name else ratio})"

    wanted = [
        f"| {row['batch']} × {row['misses']:.0f}, {row['heads']} | {_us(row['gather'])} | {_us(row['attention'])} "
        f"| {way(row, 'serial')} | {way(row, 'overlapped')} |"
        for row in rows
    ]
    assert _lines(page, r"\d+ × \d+, \d+") == wanted
    for row in rows:
        longest = max(row["gather"]["us"], row["attention"]["us"])
        for name in ("serial", "overlapped"):
            assert abs(row[f"{name}_over_longest"] - row[name]["us"] / longest) < 1e-3
        assert row[row["chosen"]]["us"] == min(row["serial"]["us"], row["overlapped"]["us"])
    assert all(row["chosen_over_longest"] <= 1.35 for row in rows)
    within = sum(row["chosen_over_longest"] <= 1.10 for row in rows)
    assert f"All twelve are within the goal, {within} within the aim" in page
    apart = [row["resolve_apart"] - row["resolve"] for row in rows]
    assert f"costs `resolve` {min(apart):.1f} to {max(apart):.1f} µs" in " ".join(page.split())


def test_the_table_of_whole_steps_is_what_was_measured() -> None:
    rows = [row for row in _kept("whole_step") if row["table"] == "contexts" and row["stand_in"]]
    resident = {(row["context"], row["heads"]): row for row in rows if "resident" in row}
    cells = [re.split(r" *\| *", line.strip("| ")) for line in _lines(_page("decoding"), r"\d+ K, \d+ \|.*")]
    assert len(cells) == 8
    for context, alone, pool, skipped, *ways, gain, share in cells:
        tokens, heads = int(context.split(" K, ")[0]) * 1024, int(context.split(", ")[1])
        requests, hot = pool.removesuffix(" hot").split(" × ")
        row = next(
            row
            for row in rows
            if (row["context"], row["heads"], row["batch"], row["hot_rows"])
            == (tokens, heads, int(requests), int(hot.replace(",", "")))
        )
        one, found = resident[tokens, heads], [row[name]["ms"] for name in ("none", "prefetch", "hits-first")]
        assert alone in {"", f"{one['batch']}: {one['resident']['ms']:.1f}"}, context
        assert skipped == f"{row['copies skipped']['ms']:.1f}", context
        assert [way.strip("*") for way in ways] == [f"{ms:.1f}" for ms in found], context
        best = min(found)
        against = row["batch"] / best / (one["batch"] / one["resident"]["ms"])
        assert gain.strip("*") == f"{against:.2f}×", context
        assert share.strip("*") == f"{row['copies skipped']['ms'] / best:.2f}", context
