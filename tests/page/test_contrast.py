"""Colours of the page, by WCAG 2.2's success criterion 1.4.11: what meets at an edge contrasts there 3 to 1.

Six states cannot each contrast with every other: 3 to the fifth is more than black has on white. So neighbours have a
seam of the card between them, and each colour contrasts with the card.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.page.conftest import page_of
from tests.page.test_access import wrong
from tests.page.test_leases import fill

if TYPE_CHECKING:
    from tests.page.browser import Browser
    from tests.serve.conftest import Served

CSS = (ROOT / "rust/hisparse-serve/page/base.css").read_text(encoding="utf-8")
THEMES = ["light", "dark"]
LEAST = 3.0
SHADES = [("committed", "committed-2"), ("reserved", "reserved-2")]
STATES = ["committed", "reserved", "quarantined", "scrubbing", "evictable", "free-edge"]
ENDS = ["granted", "busy", "quota", "never", "other"]

TOUCHING = """(() => {
  const paint = document.getElementById('map').getContext('2d');
  for (const [y, colour] of [[0, '#205080'], [8, '#802050']]) {
    paint.fillStyle = colour;
    paint.fillRect(0, y, 4, 8);
  }
  paint.clearRect(0, 16, 4, 4);
})()"""
"""Two colours of like brightness, one upon the other."""


def variables(theme: str) -> dict[str, str]:
    """The colours of a theme; what the dark one does not name is the light one's."""
    light, _, dark = CSS.partition("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})\b", light))
    if theme == "dark":
        found |= dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})\b", dark))
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_what_wcag_says_it_is() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", THEMES)
def test_each_state_and_each_end_contrasts_with_the_seam_beside_it(theme: str) -> None:
    colour = variables(theme)
    for name in [*STATES, *ENDS, *(shade for pair in SHADES for shade in pair), "focus", "mark"]:
        assert contrast(colour[name], colour["card"]) >= LEAST, (theme, name)
    assert contrast(colour["free-edge"], colour["free"]) >= LEAST, theme


@pytest.mark.parametrize("theme", THEMES)
def test_two_shades_that_tell_leases_apart_contrast_with_each_other(theme: str) -> None:
    colour = variables(theme)
    for one, other in SHADES:
        assert contrast(colour[one], colour[other]) >= LEAST, (theme, one)


@pytest.mark.parametrize("theme", THEMES)
def test_neighbours_on_the_page_have_a_seam_between_them(large: Served, browser: Browser, theme: str) -> None:
    client = large.client()
    fill(large, 100)
    for _ in range(40):
        client.admit(1_000)
    browser.look(1600, 1000, dark=theme == "dark")
    browser.open(page_of(large))
    browser.until("document.querySelectorAll('#pools .bar span:not([hidden])').length >= 6")
    gaps = browser.js(
        "[...document.querySelectorAll('#pools .bar')].flatMap((bar) => {"
        " const runs = [...bar.children].filter((run) => !run.hidden).map((run) => run.getBoundingClientRect());"
        " return runs.slice(1).map((run, place) => run.left - runs[place].right); })"
    )
    assert len(gaps) >= 3
    assert min(gaps) >= 1, gaps
    seam = browser.js("getComputedStyle(document.querySelector('#pools .bar')).backgroundColor")
    card = browser.js("getComputedStyle(document.querySelector('.card')).backgroundColor")
    assert seam == card
    assert len(wrong(browser, "colours")) >= 4
    assert wrong(browser, "touching") == []
    browser.js(TOUCHING)
    assert len(wrong(browser, "touching")) == 1, "the check sees what touches"
