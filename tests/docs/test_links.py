"""Every link of every page leads somewhere, and every command that a page shows has the flags it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from hisparse_svc.cli.app import program

from tests.docs.pages import LINK, ROOT, anchors, blocks, pages, prose

PAGES = {str(page.relative_to(ROOT)): page for page in pages()}
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")


@pytest.mark.parametrize("name", PAGES)
def test_every_link_within_the_repository_leads_to_a_file_and_a_heading(name: str) -> None:
    page, broken = PAGES[name], []
    for found in LINK.finditer(prose(page)):
        target, _, anchor = found["target"].partition("#")
        if ELSEWHERE.match(target):
            continue
        there = (page.parent / target).resolve() if target else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            broken.append(found["target"])
    assert broken == []


def commands(text: str) -> list[list[str]]:
    """The commands of this program in a block: joined over line ends, up to a pipe, a comment or `&`."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = re.split(r"\s#\s|\s[|&;]|&&", line.removeprefix("$ ").strip())[0].strip()
        for start in ("hisparse-svc ", "python -m hisparse_svc ", ".venv/bin/hisparse-svc "):
            if words.startswith(start):
                found.append(shlex.split(words.removeprefix(start)))
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_is_one_with_those_flags(name: str) -> None:
    root = click.Context(program)
    for block in blocks(PAGES[name]):
        for words in commands(block.text):
            if words[0].startswith("-") or words[0].isupper() or not re.fullmatch(r"[a-z-]+", words[0]):
                continue
            command = program.get_command(root, words[0])
            assert command is not None, f"{name}: there is no {words[0]}"
            known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}
            written = {word.split("=")[0] for word in words[1:] if word.startswith("--")}
            assert written <= known, f"{name}: {words[0]} has no {written - known}"


def test_the_checks_see_what_they_should() -> None:
    sample = Path(__file__).with_name("sample.md")
    assert len(LINK.findall(prose(sample))) == 3
    assert anchors(sample) == {"a-heading-with-code", "twice", "twice-1"}
    assert commands(blocks(sample)[0].text) == [["serve", "--listen", "127.0.0.1:0", "--json"], ["capacity"]]
