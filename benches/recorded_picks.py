"""What a model of transformers picks as it reads a text, and what each policy would miss of it.

    python benches/recorded_picks.py [--device cuda] [--out benches/results/recorded_picks.json] [--stream FILE]

The text is this package's source, a byte a token. All but the last bytes are prefilled, the last fed one by one, and
the picks of those steps are recorded (`hisparse_svc.integrations.transformers.record_picks`). On a CPU the model is
`examples/decode_on_cpu.py`'s GLM (top-k 128, 8,000 bytes before), on a GPU six layers as large as GLM-5.2's (top-k
2,048, 64,000 bytes). Weights are random in both: what is picked follows from which bytes there are, not from what they
say.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from gpu import note
from hisparse_svc.integrations.transformers import HostKv, cache_argument, record_picks
from hisparse_svc.simulate import Wanted, simulate
from hisparse_svc.topk import Stream

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import decode_on_cpu
import decode_on_gpu

ROOT = Path(__file__).parents[1]
STEPS, SKIP, PREFILL_TOKENS = 300, 50, 1_000
CONTEXT_TOKENS = {"cpu": 8_000, "cuda": 64_000}


def text(tokens: int) -> list[int]:
    """The first bytes of the source, as tokens."""
    read = b"".join(file.read_bytes() for file in sorted((ROOT / "python/hisparse_svc/engine").glob("*.py")))
    assert len(read) >= tokens, f"{len(read)} bytes of text, {tokens} asked for"
    return list(read[:tokens])


def record(model: Any, context_tokens: int, path: Path, sizes: dict[str, str], **source: Any) -> None:
    """Prefill the text and record what is picked behind it."""
    ids = torch.tensor([text(context_tokens + STEPS)], device=model.device)
    with (
        HostKv.embedded(model, hot_rows=2 * model.config.index_topk, **sizes) as kv,
        torch.no_grad(),
    ):
        cache = cache_argument(model, kv.request(context_tokens, STEPS + 1))
        for first in range(0, context_tokens, PREFILL_TOKENS):
            model(input_ids=ids[:, first : min(first + PREFILL_TOKENS, context_tokens)], logits_to_keep=1, **cache)
        note("prefilled", context_tokens)
        with record_picks(kv, path, weights="random", text="this package's source, a byte a token", **source):
            for at in range(context_tokens, context_tokens + STEPS):
                model(input_ids=ids[:, at : at + 1], logits_to_keep=1, **cache)
        note("recorded", STEPS, "steps")


def main() -> None:
    """Record, simulate, keep."""
    parser = argparse.ArgumentParser(description="record picks and simulate policies over them")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stream", type=Path, help="keep the stream there; one that is there is not recorded again")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = asked.stream or Path(folder) / "picks.topk"
        context = CONTEXT_TOKENS[asked.device]
        if path.exists():
            note("read", path)
        elif asked.device == "cpu":
            torch.set_num_threads(1)
            torch.manual_seed(0)
            sizes = {"host_pool": "256MiB", "kv_bytes": "96MiB"}
            record(decode_on_cpu.glm(context + STEPS + 64), context, path, sizes, made_by="examples/decode_on_cpu.py")
        else:
            sizes = {"host_pool": "2GiB", "kv_bytes": "2GiB", "kv_dtype": "bfloat16"}
            model = decode_on_gpu.make_model(6, 8, context + STEPS + 64)
            record(model, context, path, sizes, made_by="examples/decode_on_gpu.py")
        stream = Stream(path)
        rows = tuple(stream.top_k * times for times in (1, 2, 4))
        found = simulate([stream], Wanted(hot_rows=rows, skip=SKIP))
    keys = ("policy", "hot_rows", "miss_share", "by_layer")
    result = {
        "date": str(datetime.datetime.now(datetime.UTC).date()),
        "command": f"python benches/recorded_picks.py --device {asked.device}",
        "source": stream.source,
        "context_tokens": context,
        "steps": STEPS,
        "skip": SKIP,
        "top_k": stream.top_k,
        "uniform_draws_would_miss": {str(one): round(1 - one / context, 3) for one in rows},
        "results": [{key: one[key] for key in keys} for one in found["results"]],
    }
    for one in result["results"]:
        note(f"{one['policy']:8} {one['hot_rows']:6} {one['miss_share']:.3f}", one["by_layer"])
    if asked.out:
        kept = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else {}
        asked.out.write_text(json.dumps({**kept, asked.device: result}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
