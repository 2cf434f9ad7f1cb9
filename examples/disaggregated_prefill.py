"""One process decodes, another prefills: it writes a reservation's pages in the decoder's own host pool. Needs no GPU.

    decoder (this process)     admit ── the lease's id ─────────────────────────► commit, check ── release
    prefill (a child)                    └─► attach as importer, import_pages ── "done" ──┘

python examples/disaggregated_prefill.py
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hisparse_svc.engine import HostPool

PROMPT_TOKENS = 200
ENGINE = "decode-0"
LAYERS = range(4)


def kv(layer: int, tokens: int, row_bytes: int) -> np.ndarray:
    """What prefill computes for one layer: here, numbers that tell rows apart."""
    token = np.arange(tokens, dtype=np.uint32)[:, None]
    return ((token * 31 + layer * 7 + np.arange(row_bytes, dtype=np.uint32)) % 251).astype(np.uint8)


def keys(layer: int, pages: int, page_bytes: int) -> np.ndarray:
    """Index keys of one layer, page by page."""
    return np.full((pages, page_bytes), layer + 1, dtype=np.uint8)


def prefill(target: str, lease_id: str) -> None:
    """Fill the lease's pages, layer by layer as they are computed."""
    with HostPool.attach(target, engine_id=ENGINE, role="importer", rank=1) as pool:
        lease = pool.client.get_lease(lease_id)
        with pool.import_pages(lease) as pages:
            for layer in LAYERS:
                pages.write(layer, kv(layer, PROMPT_TOKENS, pool.group(layer).shape[3]))
                if layer in pool.indexed_layers():
                    count = -(-PROMPT_TOKENS // 64)
                    pages.write_keys(layer, keys(layer, count, pool.keys_array(layer).shape[1]))


def decode() -> None:
    """Reserve, let the other process fill, take over."""
    with HostPool.embedded(engine_id=ENGINE, host_pool="256MiB") as pool:
        assert pool.node is not None
        with pool.client.admit(prompt_tokens=PROMPT_TOKENS, max_new_tokens=56) as held:
            print(f"reserved {held.lease.pages} pages; prefill runs in another process")
            subprocess.run([sys.executable, __file__, pool.node.target, held.lease.id], check=True)
            lease = held.commit()
            numbers = list(lease.page_numbers)
            for layer in LAYERS:
                stored = pool.array(layer)[numbers]
                rows = stored.reshape(-1, stored.shape[2])[:PROMPT_TOKENS]
                assert np.array_equal(rows, kv(layer, PROMPT_TOKENS, rows.shape[1])), f"rows of layer {layer}"
                if layer in pool.indexed_layers():
                    found = pool.keys_array(layer)[numbers]
                    assert np.array_equal(found, keys(layer, *found.shape)), f"keys of layer {layer}"
            print(f"lease {lease.state}: every row and key is as prefill wrote it; decoding may start")


if __name__ == "__main__":
    prefill(*sys.argv[1:]) if len(sys.argv) == 3 else decode()
