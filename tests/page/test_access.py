"""Keyboard, names, headings and contrast: what a checker would look at, and what a person without a mouse needs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.page.conftest import page_of
from tests.page.test_leases import fill

if TYPE_CHECKING:
    from tests.page.browser import Browser
    from tests.serve.conftest import Served

WHERE = "((at) => at.id || at.className || at.textContent.trim() || at.tagName)(document.activeElement)"
STOPS = [
    "skip",
    "Pools as a table",
    "map-frame",
    "Admissions as a table",
    "leases",
    "lease",
    "state",
    "age",
    "tokens",
    "pages",
    "runs",
]
HEADINGS = "[...document.querySelectorAll('h1, h2, h3, h4')].map((part) => Number(part.tagName[1]))"
LANDMARKS = "['header', 'main', 'footer'].map((name) => document.querySelectorAll(`body > ${name}`).length)"
LOUD = "[...document.querySelectorAll('[aria-live]')].map((part) => [part.id, part.getAttribute('aria-live')])"
CHECKS = Path(__file__).with_name("checks.js").read_text(encoding="utf-8")


def wrong(page: Browser, check: str) -> list[object]:
    """What a check of `checks.js` finds."""
    found: list[object] = page.js(f"(() => {{ {CHECKS} return checks.{check}(); }})()")
    return found


@pytest.fixture
def page(large: Served, browser: Browser) -> Browser:
    """The page of a node that holds a hundred leases, in a wide window."""
    fill(large, 100)
    browser.look(1600, 1000)
    browser.open(page_of(large))
    browser.until("document.querySelectorAll('#leases tr[data-id]').length > 5")
    return browser


def test_the_keyboard_comes_to_every_part_in_the_order_of_the_page(page: Browser) -> None:
    stops = []
    for _ in STOPS:
        page.key("Tab", 9)
        stops.append(page.js(WHERE))
        visible = page.js("getComputedStyle(document.activeElement).outlineStyle")
        assert visible != "none", f"nothing shows that {stops[-1]} has the focus"
    assert stops == STOPS


def test_the_map_and_the_leases_are_moved_over_with_the_keyboard(page: Browser) -> None:
    page.js("document.getElementById('map-frame').focus()")
    page.key("ArrowRight", 39)
    page.until("document.getElementById('map-readout').textContent.startsWith('page')")
    first = page.js("document.getElementById('map-readout').textContent")
    page.key("ArrowDown", 40)
    page.until(f"document.getElementById('map-readout').textContent !== {first!r}")
    page.key("Escape", 27)
    page.until("document.getElementById('map-readout').textContent.startsWith('Point')")
    page.js("document.getElementById('leases').focus()")
    page.key("ArrowDown", 40)
    page.key("ArrowDown", 40)
    assert page.js("document.getElementById('leases').getAttribute('aria-activedescendant')") == "lease-1"
    page.key("Enter", 13, "\r")
    assert page.js("document.querySelectorAll('#leases tr[aria-selected=true]').length") == 1
    page.key("Escape", 27)
    assert page.js("document.querySelectorAll('#leases tr[aria-selected=true]').length") == 0


def test_everything_has_a_name_and_its_place(page: Browser) -> None:
    assert page.js("document.documentElement.lang") == "en"
    assert page.js(LANDMARKS) == [1, 1, 1]
    for check in ("nameless", "doubleIds", "brokenReferences"):
        assert wrong(page, check) == [], check
    levels = page.js(HEADINGS)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels)), levels
    assert page.js("document.querySelectorAll('th:not([scope])').length") == 0
    loud = page.js(LOUD)
    assert {name for name, _ in loud} == {"standing", "map-readout"}, "numbers that change are not said aloud"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(page: Browser, dark: bool) -> None:
    page.look(1600, 1000, dark=dark)
    page.js("document.querySelectorAll('details').forEach((part) => { part.open = true })")
    assert wrong(page, "faint") == []
