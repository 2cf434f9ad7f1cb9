"""Several GPUs of one machine on one host copy: swap-ins and whole steps on 1, 2, 4, 8 ranks at once.

::

    serve ── one pool ──┬── rank 0, writer, GPU 0       `rank.py`, a process each
      (per placement)   ├── rank 1, reader, GPU 1
                        └── …

On a machine with GPUs: `python benches/ranks.py --pool 200GiB --assume-memory 400GiB --out benches/results/ranks.json`.
Everything that the machine has GPUs for is measured: counts of ranks, placements of the pool on memory nodes, the same
misses on every rank (tensor parallel) and different ones (data parallel), plain copies of as many bytes beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hisparse_svc
import torch
from gpu import document, keep, note
from hisparse_svc import _core
from hisparse_svc.bench.shared import machine_shared_bytes, pool_bytes
from hisparse_svc.engine import MLA_FP8
from hisparse_svc.kernels import INDEX_FP8, PAGE_ROWS
from rank import VARIANTS, Row, StepWanted, SwapInWanted, run
from whole_step import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ANSWER_S, SMALL_LAYERS = 300, 3
COPIES = ("swap_in", "swap_in_beside_step", "swap_in_beside_prefill", "memcpy")


def model_of(layers: int, options: argparse.Namespace) -> dict[str, Any]:
    """A model whose layers each have an indexer: so many as fit the pool with 128 requests of 64 K tokens."""
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "num_hidden_layers": layers,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "hidden_size": 6144,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_topk": options.top_k,
        "indexer_types": ["full"] * layers,
        "max_position_embeddings": options.context,
        "vocab_size": 1000,
        "dtype": "bfloat16",
    }


@contextlib.contextmanager
def serving(
    model: str | dict[str, Any], pool: str, numa: str, options: argparse.Namespace
) -> Iterator[tuple[str, int, Row]]:
    """A service with a pool, of a preset or a configuration; give its target, its process, and what the pool took."""
    with tempfile.TemporaryDirectory(prefix="hisparse-ranks-") as folder:
        socket, config = Path(folder) / "node.sock", Path(folder) / "config.json"
        if not isinstance(model, str):
            config.write_text(json.dumps(model), encoding="utf-8")
            model = str(config)
        flags = ["--model", model, "--kv-dtype", "fp8_e4m3", "--host-pool", pool, "--kv-bytes", options.kv_bytes]
        flags += ["--numa", numa, "--backing", "memory", "--http", "off", "--socket", str(socket)]
        if options.assume_memory:
            flags += ["--assume-memory", options.assume_memory]
        before, start = machine_shared_bytes(), time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "hisparse_svc", "serve", *flags], stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise RuntimeError(f"the service did not start: exit code {process.wait(20)}; it says why above")
            made = time.perf_counter() - start
            target = f"unix:{socket}"
            with hisparse_svc.Client(target) as client:
                segments = client.server_info().segments
            size = sum(segment.bytes for segment in segments)
            told: Row = {"numa": numa, "pool_bytes": size, "made_s": round(made, 2)}
            told["machine_shared_bytes"] = machine_shared_bytes() - before
            told["segments"] = [
                {"bytes": one.bytes, "backing": one.backing, "placed": one.placement, "nodes": dict(one.node_percent)}
                for one in segments
            ]
            note(f"a pool of {size / 2**30:.1f} GiB in {made:.1f} s, {numa}")
            yield target, process.pid, told
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


def ranks_at_once(count: int, target: str, service: int, wanted: SwapInWanted | StepWanted, device: str) -> Row:
    """Run so many ranks; give what each found, and what the pool takes while all have it."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    pipes, processes = [], []
    for rank in range(count):
        here, there = context.Pipe()
        own = {"device": device, "wanted": wanted}
        processes.append(context.Process(target=run, args=(there, barrier, target, rank), kwargs=own, daemon=True))
        processes[-1].start()
        there.close()
        pipes.append(here)
    try:
        found = [answer(pipe, process) for pipe, process in zip(pipes, processes, strict=True)]
        each = [pool_bytes(pid) for pid in (service, *(int(process.pid or 0) for process in processes))]
        for pipe in reversed(pipes):  # readers leave first
            pipe.send(None)
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    mapped = {"mapped_bytes": [whole for whole, _ in each], "held_bytes": sum(share for _, share in each)}
    return {"ranks": count, "each": found, **mapped}


def answer(pipe: Any, process: Any) -> Row:
    """What a rank found."""
    if not pipe.poll(ANSWER_S):
        raise RuntimeError(f"{process.name} has not answered for {ANSWER_S} s")
    try:
        found: Row = pipe.recv()
    except EOFError:
        process.join(20)
        raise RuntimeError(f"{process.name} ended with code {process.exitcode}; it says why above") from None
    return found


def swap_in_table(found: Row) -> list[Row]:
    """Rates of all ranks together and of each, in GB/s of rows, and whether ranks got the same bytes."""
    table = []
    for at, first in enumerate(found["each"][0]["rows"]):
        mine = [rank["rows"][at] for rank in found["each"]]
        row: Row = {"ranks": found["ranks"], **{key: first[key] for key in ("misses", "shared", "bytes")}}
        row |= {name: rates([one[name] for one in mine], first["bytes"]) for name in COPIES}
        if first["shared"]:
            row["bit_equal"] = equal([one["digest"] for one in mine])
        table.append(row)
    return table


def equal(digests: Sequence[str]) -> bool:
    """Demand that all ranks got the same bytes; one alone has nothing to compare with."""
    if len(set(digests)) != 1:
        raise AssertionError(f"ranks that were to get the same bytes got others: {digests}")
    return True


def rates(told: Sequence[Row], size: int) -> Row:
    """GB/s of each rank and of all, and how much of the time all were at it."""
    each = [round(size / one["us"] / 1e3, 2) for one in told]
    windows = [one["window"] for one in told]
    common = min(end for _, end in windows) - max(begin for begin, _ in windows)
    return {
        "gb_s": round(sum(each), 2),
        "each_gb_s": each,
        "each_us": [one["us"] for one in told],
        "spread_us": [one["spread_us"] for one in told],
        "at_once": round(max(0.0, common) / max(end - begin for begin, end in windows), 3),
    }


def step_row(found: Row) -> Row:
    """What a step takes on the slowest rank, and the swap-in that shows."""
    row: Row = {"ranks": found["ranks"], "miss_share": found["each"][0]["step"]["miss_share"]}
    for variant in VARIANTS:
        row[variant] = [rank["step"][variant] for rank in found["each"]]
    slowest = {variant: max(one["ms"] for one in row[variant]) for variant in VARIANTS}
    row["exposed_ms"] = round(min(slowest[name] for name in VARIANTS[1:]) - slowest["copies skipped"], 3)
    row["bit_equal"] = equal([rank["step"]["digest"] for rank in found["each"]])
    return row


def swap_in_part(result: Row, placements: Sequence[str], options: argparse.Namespace) -> None:
    """Swap-ins, for every placement and count of ranks."""
    pages = options.requests * -(-options.context // PAGE_ROWS) + 1  # the last one is never granted
    layers = _core.parse_size(options.pool) // (pages * (PAGE_ROWS * MLA_FP8.row_bytes + INDEX_FP8.page_bytes))
    wanted = SwapInWanted(
        options.requests, options.context, options.hot_rows, options.top_k, tuple(options.misses), options.replays
    )
    for numa in placements:
        with serving(model_of(layers, options), options.pool, numa, options) as (target, process, told):
            made: Row = {**told, "layers": layers, "attached": [], "rows": []}
            result["swap_in"].append(made)
            for count in options.ranks:
                found = ranks_at_once(count, target, process, wanted, options.device)
                made["attached"].append(attached_row(found))
                note(json.dumps(made["attached"][-1]))
                for row in swap_in_table(found):
                    made["rows"].append(row)
                    note(json.dumps(row))
                keep(result, options.out)


def attached_row(found: Row) -> Row:
    """How long each rank took to get the pool, and what it takes of the machine while all have it."""
    names = ("rank", "gpu_node", "attach_s", "register_s")
    each = [{name: rank[name] for name in names if name in rank} for rank in found["each"]]
    return {"ranks": found["ranks"], "each": each, **{key: found[key] for key in ("mapped_bytes", "held_bytes")}}


def step_part(result: Row, numa: str, options: argparse.Namespace) -> None:
    """Whole steps, for every count of ranks."""
    setting, model = Setting(), options.step_model
    if options.device == "cpu":
        model = model_of(SMALL_LAYERS, options)
        misses = {2 * options.top_k: 0.2, 4 * options.top_k: 0.1}
        setting = Setting(
            top_k=options.top_k, index_heads=4, misses=misses, steps=2, warm_steps=1, device=options.device
        )
    wanted = StepWanted(
        options.step_requests,
        options.step_context,
        options.step_hot_rows,
        options.heads,
        setting,
        stand_in=options.device != "cpu",
    )
    with serving(model, options.step_pool, numa, options) as (target, process, told):
        made: Row = {**told, "requests": wanted.requests, "context": wanted.context, "heads": wanted.heads, "rows": []}
        result["step"] = made
        for count in options.ranks:
            found = ranks_at_once(count, target, process, wanted, options.device)
            made["rows"].append({**step_row(found), "attached": attached_row(found)})
            note(json.dumps(made["rows"][-1]))
            keep(result, options.out)


def memory_nodes() -> list[int]:
    """Memory nodes of this machine; none where it does not say."""
    found = Path("/sys/devices/system/node").glob("node[0-9]*")
    return sorted(int(path.name.removeprefix("node")) for path in found)


def processor() -> str:
    """What the host's processor calls itself."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def placements_of(nodes: Sequence[int]) -> list[str]:
    """Where to put the pool: on each node, and on all in turn; anywhere on a machine with one."""
    if len(nodes) < 2:
        return ["any"]
    return [*(f"prefer:{node}" for node in nodes), "prefer:" + ",".join(map(str, nodes))]


def draw(result: Row, folder: Path) -> None:
    """Draw rates by ranks, and what of the swap-in shows in a step."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, and an extra

    figure = Figure(figsize=(11, 4), layout="constrained", dpi=80)
    left, right = figure.subplots(1, 2)
    for at, made in enumerate(result["swap_in"]):
        most = max(row["misses"] for row in made["rows"])
        for shared, name, style in (
            (True, "swap_in", "-o"),
            (False, "swap_in", "-s"),
            (True, "memcpy", ":^"),
            (False, "memcpy", ":v"),
        ):
            rows = [row for row in made["rows"] if row["misses"] == most and row["shared"] is shared]
            label = f"{name.replace('_', '-')}, {'the same' if shared else 'different'} misses"
            label += f", pool {made['numa']}" if len(result["swap_in"]) > 1 else ""
            rates_of = [row[name]["gb_s"] for row in rows]
            left.plot([row["ranks"] for row in rows], rates_of, style, color=f"C{2 * at + shared}", label=label)
    left.set_ylabel("GB/s of all ranks")
    for row in result.get("step", {}).get("rows", []):
        for at, variant in enumerate(VARIANTS):
            place = row["ranks"] + (at - 1.5) * 0.15
            right.bar(place, max(one["ms"] for one in row[variant]), 0.14, color=f"C{at}")
    for at, variant in enumerate(VARIANTS):
        right.bar(1, 0, color=f"C{at}", label=variant)
    right.set_ylabel("ms of a whole step, the slowest rank")
    for axes in (left, right):
        axes.set_xlabel("ranks at once, a GPU each")
        axes.set_xticks(result["ranks"])
        axes.grid(visible=True, alpha=0.3)
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
        axes.legend(fontsize="small", loc="upper left", ncols=1 if axes is left else 2)
    figure.suptitle(f"{result['gpu']}, {result['date'][:10]}: ranks on one host copy", fontsize="medium")
    figure.savefig(folder / "ranks.png")


def options_of() -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", help="counts to measure; 1, 2, 4, … up to the GPUs there are")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the program, no more")
    parser.add_argument("--parts", nargs="+", choices=("swap_in", "step"), default=["swap_in", "step"])
    parser.add_argument("--numa", nargs="+", help="placements, as `serve --numa`; by default each node, and all")
    parser.add_argument("--assume-memory", help="as `serve --assume-memory`")
    parser.add_argument("--kv-bytes", default="110GiB", help="GPU memory that the services plan with")
    parser.add_argument("--pool", default="64GiB", help="pool for swap-ins: as many layers as fit")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--context", type=int, default=65_536)
    parser.add_argument("--hot-rows", type=int, default=4096)
    parser.add_argument("--top-k", type=int, default=2048)
    parser.add_argument("--misses", type=int, nargs="+", default=[102, 205])
    parser.add_argument("--replays", type=int, default=40)
    parser.add_argument("--step-model", default="glm-5.2")
    parser.add_argument("--step-pool", default="96GiB")
    parser.add_argument("--step-requests", type=int, default=28)
    parser.add_argument("--step-context", type=int, default=65_536)
    parser.add_argument("--step-hot-rows", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, metavar="RESULT.json", help="draw a kept result to docs/plots instead")
    options = parser.parse_args()
    there = torch.cuda.device_count()
    options.ranks = options.ranks or [count for count in (1, 2, 4, 8) if count <= there]
    if options.device == "cuda" and not options.draw and max(options.ranks, default=9) > there:
        parser.error(f"--ranks {options.ranks}: this machine has {there} GPUs")
    return options


def main() -> None:
    """Measure, print, keep."""
    options = options_of()
    if options.draw:
        draw(json.loads(options.draw.read_text(encoding="utf-8")), Path("docs/plots"))
        return
    nodes = memory_nodes()
    placements = options.numa or placements_of(nodes)
    result = document(
        "GB/s of rows that all ranks copy at once; ms of a whole step", device=options.device, ranks=options.ranks
    )
    result |= {"cpu": processor(), "cpus": os.cpu_count(), "memory_nodes": nodes, "swap_in": []}
    if "swap_in" in options.parts:
        swap_in_part(result, placements, options)
    if "step" in options.parts:
        step_part(result, placements[-1], options)
    keep(result, options.out)


if __name__ == "__main__":
    main()
