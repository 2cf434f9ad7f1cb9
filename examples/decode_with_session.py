"""Decode two requests whose KV lives in host memory, with a model of five layers that is made up here. Needs no GPU.

    admit ── join ── prefill ── steps ── retract ·· resume ── steps ── leave
                                   │ a layer: the engine gives queries and the new token's row,
                                   └─────────  the session fetches what was picked and is not hot, and attends

python examples/decode_with_session.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import hisparse_svc
import torch
from hisparse_svc.engine import DecodeSession, DecodeShape, HostCopy, HostPool, IndexInputs, Running

HEADS, INDEX_HEADS, SCALE = 8, 4, 256**-0.5
PROMPTS = (150, 220)
STEPS = 50
"""Tokens that each request generates."""

CONFIG = {  # a GLM in small: the last two layers attend to what the third one's indexer picked
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 5,
    "num_attention_heads": HEADS,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "hidden_size": 1024,
    "index_head_dim": 128,
    "index_n_heads": INDEX_HEADS,
    "index_topk": 64,
    "indexer_types": ["full", "full", "full", "shared", "shared"],
    "max_position_embeddings": 512,
    "vocab_size": 1000,
    "dtype": "bfloat16",
}


class Model:
    """Stands in for the engine's own model: numbers of the right shapes. A real one computes them from its layers."""

    def __init__(self) -> None:
        self._random = torch.Generator().manual_seed(1)
        self._asked = self.numbers(INDEX_HEADS, 128)

    def numbers(self, *shape: int) -> torch.Tensor:
        """Random numbers."""
        return torch.randn(shape, generator=self._random)

    def rows(self, tokens: int) -> torch.Tensor:
        """Rows of a prompt as they are stored: 512 latent numbers, 64 of RoPE, as bytes."""
        return self.numbers(tokens, 576).bfloat16().view(torch.uint8)

    def index(self, batch: int) -> IndexInputs:
        """What an indexer is given. Its queries drift, so most of a step's picks were picked in the last one, too."""
        self._asked = 0.97 * self._asked + 0.25 * self.numbers(INDEX_HEADS, 128)
        q = self._asked.expand(batch, 1, INDEX_HEADS, 128)
        return IndexInputs(q, torch.ones(batch, 1, INDEX_HEADS), self.numbers(batch, 1, 128))


def prefill(session: DecodeSession, model: Model, request: Running, tokens: int) -> None:
    """Write a prompt's rows of every layer, and index keys of those that have an indexer."""
    for layer in range(session.shape.layers):
        _, place = session.shape.place(layer)
        keys = model.numbers(tokens, 128) if place == 0 else None
        session.prefill(request, layer, model.rows(tokens), keys=keys)
    session.prefilled(request, tokens)


def decode(session: DecodeSession, model: Model, requests: list[Running]) -> int:
    """One token for each request; give how many rows were copied from host memory."""
    batch, copied = len(requests), 0
    with session.step(requests) as step:
        for layer in range(session.shape.layers):
            group, place = session.shape.place(layer)
            q = model.numbers(batch, 1, HEADS, 576).bfloat16()
            index = model.index(batch) if place == 0 else None
            out = step.attend(layer, q, model.numbers(batch, 1, 576), scale=SCALE, index=index)
            assert out.isfinite().all()  # [batch, 1, head, 512]: the engine goes on from here
            if place == 0:  # one plan for all layers of the group
                copied += int(step.plan.counts.sum()) * session.shape.layer_groups[group]
    return copied


def steps(session: DecodeSession, model: Model, requests: list[Running], count: int, how: str) -> None:
    """Decode so many tokens, and print what was swapped in."""
    copied = [decode(session, model, requests) for _ in range(count)]
    picked = session.shape.layers * session.shape.geometry.top_k * len(requests)
    later = sum(copied[1:]) / (count - 1)
    print(f"{count} steps {how}, {picked} rows picked in each: swapped in {copied[0]}, then {later:.0f} on average")


def main() -> None:
    """Run it."""
    torch.set_num_threads(1)  # tensors here are tiny: threads would spend their time waiting for each other
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        settings = {"kv_dtype": "bfloat16", "host_pool": "32MiB", "hot_rows": 128, "kv_bytes": "6MiB"}
        with HostPool.embedded(model=str(config), **settings) as pool:
            assert pool.node is not None
            run(pool, DecodeShape.of_plan(pool.node.plan, hisparse_svc.load_model(str(config))))


def run(pool: HostPool, shape: DecodeShape) -> None:
    """Decode over a pool, with a session of the shape that its node planned."""
    session = DecodeSession(shape, HostCopy.of_pool(pool), "cpu", leases=pool.client)
    geometry = shape.geometry
    print(
        f"{geometry.seats} seats of {geometry.hot_rows} hot rows; {shape.layers} layers, {geometry.top_k} picks a step"
    )

    model, requests = Model(), []
    for prompt in PROMPTS:
        held = pool.client.admit(prompt_tokens=prompt, max_new_tokens=STEPS)
        requests.append(session.join(held.lease))  # commits the lease; `leave` releases it
        prefill(session, model, requests[-1], prompt)
    print(f"joined with {[request.length for request in requests]} tokens in pages {[r.pages for r in requests]}")

    first, second = requests
    steps(session, model, requests, 25, "together")
    session.retract(second)  # its seat is free for another; it keeps its lease and its pages
    print(f"retracted the second at {second.length} tokens: {session.free_seats} of {geometry.seats} seats are free")
    steps(session, model, [first], 5, "of the first alone")
    session.resume(second)  # on any free seat, with the rows hot that were hot when it left
    steps(session, model, requests, 20, "together again")
    steps(session, model, [second], 5, "of the second alone")

    session.settle(wait=True)
    for request in requests:
        print(f"left with {request.length} tokens, {request.durable_tokens} of them durable in host memory")
        session.leave(request)
    capacity = pool.client.get_capacity().pool("host_pages")
    print(f"{capacity.free + capacity.scrubbing} of {capacity.total} pages free or being zeroed")


if __name__ == "__main__":
    main()
