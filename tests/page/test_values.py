"""What the page shows is what `GetCapacity` answers at that moment, in a replay, at both widths and in both themes."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hisparse_svc.engine import HostPool, SwapInUsage

from tests.page.conftest import page_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from hisparse_svc import Client
    from hisparse_svc.rpc.values import Capacity

    from tests.page.browser import Browser
    from tests.serve.conftest import Served

OUT = Path(__file__).parents[2] / "out/page"
"""Where CI finds the pictures."""

WIDTHS = {400: 900, 1600: 1000}
LENGTHS = [8_192, 32_768, 131_072]
SHOWN = """(() => ({
  sequence: Number(document.documentElement.dataset.sequence),
  largest: document.getElementById('largest').textContent,
  fits: [...document.querySelectorAll('#fits tbody tr')].map((row) =>
    [Number(row.dataset.tokens), row.children[1].textContent, row.dataset.binding]),
  pools: Object.fromEntries([...document.querySelectorAll('#pools-table tbody tr')].map((row) =>
    [row.dataset.pool, Object.fromEntries([['total', row.children[1].textContent],
      ...[...row.querySelectorAll('[data-is]')].map((cell) => [cell.dataset.is, cell.textContent])])])),
  leases: document.getElementById('leases-lead').textContent,
}))()"""
STATES = ("total", "free", "reserved", "committed", "evictable", "scrubbing", "quarantined")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def agree(browser: Browser, client: Client) -> dict[str, Any]:
    """The page once it shows what `GetCapacity` answers; that must come about while nothing changes."""
    end = time.monotonic() + 15
    while True:
        seen: Capacity = client.get_capacity(LENGTHS)
        shown: dict[str, Any] = browser.js(SHOWN)
        if shown["sequence"] == seen.sequence:
            break
        assert time.monotonic() < end, f"the page is at {shown['sequence']}, the node at {seen.sequence}"
        time.sleep(0.05)
    pools = {name: {state: number(text) for state, text in pool.items()} for name, pool in shown["pools"].items()}
    assert pools == {pool.name: {state: getattr(pool, state) for state in STATES} for pool in seen.pools}
    assert number(shown["largest"]) == seen.largest_grant_tokens
    fits = {tokens: (number(count), binding) for tokens, count, binding in shown["fits"]}
    assert {fit.tokens: (fit.count, fit.binding) for fit in seen.fits}.items() <= fits.items()
    return shown


@pytest.mark.timeout(120)
def test_values_are_those_of_get_capacity_during_a_replay_and_pictures_are_kept(
    large: Served, browser: Browser, replay: Callable[[Served], subprocess.Popen[str]]
) -> None:
    client = large.client()
    browser.look(1600, 1000)
    browser.open(page_of(large))
    agree(browser, client)
    playing = replay(large)
    browser.until("Number(document.documentElement.dataset.sequence) > 40")
    for moment in range(3):
        time.sleep(0.7)
        playing.send_signal(signal.SIGSTOP)
        assert playing.poll() is None, "the replay is over"
        try:
            shown = agree(browser, client)
        finally:
            playing.send_signal(signal.SIGCONT)
        assert number(shown["leases"].split()[0]) >= 0, moment
    for width, height in WIDTHS.items():
        for dark in (False, True):
            browser.look(width, height, dark=dark)
            time.sleep(0.4)
            browser.picture(OUT / f"{width}-{'dark' if dark else 'light'}.png")
            overflow = browser.js("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow == 0, f"the page is {overflow} px wider than {width} px"


def test_swap_in_is_shown_by_layer_group_as_an_engine_reports_it(
    serve: Callable[..., Served], browser: Browser
) -> None:
    served = serve("--backing", "memory", "--host-pool", "256MiB", "--http", "127.0.0.1:0")
    browser.look(1600, 1000)
    browser.open(page_of(served))
    assert browser.js("document.getElementById('swap').textContent") == "no engine reports yet"
    assert browser.js("document.querySelectorAll('#numa .pool').length") >= 1, "where the pool's memory lies"
    with HostPool.attach(served.target) as engine:
        engine.report_usage(swap_in=[SwapInUsage(0, 930, 70, 45_920)])
        browser.until("document.querySelector('#swap [data-group=\"0\"]')?.textContent.includes('93.0 % of 1,000')")
        assert "layer group 0: 93.0 % of 1,000 rows were hits" in served.cli("top", "--once").out


def test_a_drain_is_shown_and_said_aloud(large: Served, browser: Browser) -> None:
    browser.look(400, 900)
    browser.open(page_of(large))
    browser.until("document.getElementById('standing').textContent === 'granting'")
    assert large.cli("drain").code == 0
    browser.until("document.getElementById('standing').textContent === 'draining'")
    assert browser.js("document.getElementById('standing').getAttribute('aria-live')") == "polite"
    assert browser.js(
        "[...document.querySelectorAll('#fits .why')].every((why) => why.textContent.endsWith('draining'))"
    )
    agree(browser, large.client())


def test_a_service_that_goes_is_told_and_one_that_comes_back_is_shown(
    serve: Callable[..., Served], browser: Browser
) -> None:
    first = serve("--host-pool", "8GiB", "--http", "127.0.0.1:0")
    address = page_of(first)
    browser.look(1600, 1000)
    browser.open(address)
    first.end()
    browser.until("document.getElementById('standing').dataset.tone === 'bad'")
    assert "shown as of" in browser.js("document.getElementById('standing').textContent")
    assert browser.js("document.documentElement.hasAttribute('data-stale')"), "old figures look like live ones"
    serve("--host-pool", "8GiB", "--http", address.removeprefix("http://").rstrip("/"), name="next")
    browser.until("document.getElementById('standing').textContent === 'granting'", 30)
    assert not browser.js("document.documentElement.hasAttribute('data-stale')")
    browser.complaints.clear()  # a refused connection is an error of the console's, and was meant here
