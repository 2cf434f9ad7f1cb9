"""A thousand leases: few rows in the document, every one within reach, and pictures drawn in time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import hisparse_svc
import pytest

from tests.page.conftest import page_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.browser import Browser
    from tests.serve.conftest import Served

LEASES = 1_000
MOST_ROWS = 80
FRAMES = Path(__file__).with_name("frames.js").read_text(encoding="utf-8")


def fill(served: Served, leases: int) -> None:
    """Take so many leases of different lengths."""
    client = served.client()
    for start in range(0, leases, 100):
        requests = [
            hisparse_svc.Request(
                request_id=f"r{start + place}", prompt_tokens=64 * (1 + (start + place) % 37), ttl_s=600
            )
            for place in range(100)
        ]
        assert all(decision for decision in client.batch_admit(requests))


@pytest.mark.timeout(120)
def test_a_thousand_leases_keep_few_rows_in_the_document(
    serve: Callable[..., Served], browser: Browser, record_property: Callable[[str, object], None]
) -> None:
    served = serve(
        "--host-pool", "256GiB", "--kv-bytes", "120GiB", "--hot-rows", "2048", "--max-requests", "1200",
        "--http", "127.0.0.1:0",
    )  # fmt: skip
    fill(served, LEASES)
    browser.look(1600, 1000)
    browser.open(page_of(served))
    browser.until(f"document.querySelector('#leases table').getAttribute('aria-rowcount') === '{LEASES + 1}'")
    found = browser.js(f"(async () => {{ {FRAMES} return frames(); }})()")
    record_property("frames", found)
    assert found["most_rows"] <= MOST_ROWS, found
    # What a wide page shows is what `leases` and `release` take.
    ids = browser.js("[...document.querySelectorAll('#leases tr[data-id]')].map((row) => row.cells[0].textContent)")
    assert set(ids) <= {lease.id for lease in served.client().list_leases()}, ids
    cut = (
        "[...document.querySelectorAll('#leases tr[data-id] td')].filter((cell) => cell.scrollWidth > cell.clientWidth)"
    )
    assert browser.js(f"{cut}.length") == 0
    browser.js("document.getElementById('leases').scrollTop = 1e9")
    browser.until(f"document.getElementById('lease-{LEASES - 1}') !== null")
    # The longest first, then the shortest.
    for order in ("descending", "ascending"):
        browser.js("document.querySelector('#leases th[data-key=tokens] button').click()")
        browser.until(f"document.querySelector('#leases th[data-key=tokens]').getAttribute('aria-sort') === '{order}'")
        first = "2,368" if order == "descending" else "64"
        browser.until(f"document.querySelector('#lease-0 td:nth-child(4)')?.textContent === '{first}'")
