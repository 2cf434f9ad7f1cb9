"""The picture that `top` draws, from 60 columns on: what is left over of the height goes to the leases.

::

    hisparse-svc  glm-5.2  granting                        epoch 3  sequence 1,234  up 5 min
    host pages      ████████▓▓▓░░░░░░░░      97 free of 310
    fits now          8K   16K   32K  …
    pages           ████████▓▓▓▓▒▒▒▒····
    admits          granted 1,234  ▁▂▃▅█
    leases          …
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hisparse_svc.cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

STATES = {
    "committed": ("█", "blue", "in use"),
    "reserved": ("▓", "cyan", "reserved"),
    "quarantined": ("x", "red", "quarantined"),
    "scrubbing": ("z", "yellow", "being zeroed"),
    "evictable": ("▒", "green", "cached"),
    "free": ("·", "bright_black", "free"),
}
"""How each state of a pool is drawn, in order: without colours its sign still tells it."""

POOLS = {
    "host_pages": "host pages",
    "seats": "seats",
    "indexer_tokens": "indexer tokens",
    "request_slots": "request slots",
    "window_tokens": "window tokens",
}
LEASE_STATES = {
    "LEASE_STATE_RESERVED": "reserved",
    "LEASE_STATE_COMMITTED": "in use",
    "LEASE_STATE_QUARANTINED": "quarantined",
}
ORDERS = ("age", "tokens", "pages")
"""What leases may be sorted by, the largest first."""

SPARKS = " ▁▂▃▄▅▆▇█"
LABEL = 16
"""Columns of what a line is about."""
MAP_LINES = 4
FEWEST_LEASES = 3


@dataclass(frozen=True)
class Size:
    """Of the terminal; `lines` is `None` where there is no bound."""

    columns: int
    lines: int | None


def picture(seen: dict[str, Any], size: Size, *, by: str = "age", told: str = "") -> RenderableType:
    """Draw everything."""
    parts: list[RenderableType] = [
        *head(seen, told, size.columns),
        *pools(seen, size.columns),
        Text(),
        *fits(seen, size.columns),
    ]
    parts += [Text(), *page_map(seen, size.columns), *legend(size.columns), *numa(seen)]
    parts += [Text(), *admits(seen, size.columns), *swap_in(seen), Text()]
    # Each part is one line but the table of lengths, which has two; the leases have a title, a head and its rule.
    room = None if size.lines is None else max(FEWEST_LEASES, size.lines - len(parts) - 1 - 3)
    return Group(*parts, leases(seen, by, room))


def head(seen: dict[str, Any], told: str, columns: int) -> list[Text]:
    """Draw who it is and whether it grants."""
    capacity = seen["capacity"]
    # What it said last is no news once it does not answer.
    word, colour = ("not connected", "red") if told else (seen["not_ready"] or "granting", "yellow")
    standing = Text(f" {word} ", style=f"black on {'green' if word == 'granting' else colour}")
    program, apart = "hisparse-svc ", "  "
    model = output.shortened(output.plain(seen["model"]), columns - len(program) - len(apart) - len(standing))
    first = Text.assemble((program, "bold"), model, apart, standing)
    facts = (
        f"epoch {capacity['epoch']}  sequence {capacity['sequence']:,}  up {span(seen['uptime'])}  "
        f"waiting {seen['waiters']:,}  engine processes {seen['sessions']:,}"
    )
    lines = [first, Text(facts, style="bright_black", no_wrap=True, overflow="ellipsis")]
    lines += [Text(f"note: {output.plain(note)}", style="yellow") for note in seen["notes"]]
    if told:
        lines.append(Text(output.plain(told), style="bold red", no_wrap=True, overflow="ellipsis"))
    return [*lines, Text()]


def pools(seen: dict[str, Any], columns: int) -> list[Text]:
    """Draw a bar per pool."""
    drawn = []
    for pool in seen["capacity"]["pools"]:
        figures = f"{pool['free']:>11,} free of {pool['total']:,}"
        if pool["evictable"]:
            figures += f", {pool['evictable']:,} cached"
        width = max(8, columns - LABEL - 44)
        line = label(POOLS.get(pool["name"], pool["name"]))
        line.append_text(bar({state: pool[state] for state in STATES}, width))
        line.append(figures)
        drawn.append(whole_line(line))
    return drawn


def bar(amounts: dict[str, int], width: int) -> Text:
    """Draw shares as a line of so many signs: a state that is there at all has at least one."""
    total = sum(amounts.values())
    line = Text()
    left = width
    shown = {state: amount for state, amount in amounts.items() if amount > 0}
    for place, (state, amount) in enumerate(shown.items()):
        sign, style, _ = STATES[state]
        last = place == len(shown) - 1
        cells = left if last else min(left - (len(shown) - 1 - place), max(1, round(width * amount / total)))
        line.append(sign * max(cells, 0), style=style)
        left -= max(cells, 0)
    return line


def fits(seen: dict[str, Any], columns: int) -> list[RenderableType]:
    """Draw how many more requests of each length fit, and what stops the next."""
    drawn = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    drawn.add_column(width=LABEL - 2)
    shown = seen["fits"][: max(1, (columns - LABEL) // 8)]
    for _ in shown:
        drawn.add_column(justify="right", no_wrap=True)
    drawn.add_row("length", *(tokens(fit["tokens"]) for fit in shown), style="bright_black")
    drawn.add_row("more fit now", *(Text(f"{fit['count']:,}", style="bold") for fit in shown))
    stops = [why for fit in seen["fits"] if (why := stopped(fit))]
    grouped: dict[str, list[str]] = {}
    for fit, why in zip(seen["fits"], stops, strict=True):
        grouped.setdefault(why, []).append(tokens(fit["tokens"]))
    lines = [label("the next meets").append(f"{why}: {', '.join(lengths)}") for why, lengths in grouped.items()]
    grant = label("largest grant").append(f"{seen['capacity']['largest_grant_tokens']:,} tokens")
    return [drawn, *map(whole_line, [*lines, grant])]


def stopped(fit: dict[str, Any]) -> str:
    """Say what the next request of a length meets."""
    pool = POOLS.get(fit["binding"], fit["binding"].replace("_", " "))
    return output.plain(f"{fit['reason'] or 'a fault'} ({pool})")


def page_map(seen: dict[str, Any], columns: int) -> list[Text]:
    """Draw the pages in their order, each sign for as many as it must be: the state that most of them are in."""
    found = seen["map"]
    if not found:
        return []
    buckets = list(zip(*(found[state] for state in STATES), strict=True))
    room = (columns - LABEL) * MAP_LINES
    each = -(-len(buckets) // room) if buckets else 1
    signs = Text()
    for start in range(0, len(buckets), each):
        sums = [sum(parts) for parts in zip(*buckets[start : start + each], strict=True)]
        sign, style, _ = STATES[max(STATES, key=lambda state, sums=sums: sums[list(STATES).index(state)])]  # type: ignore[misc]
        signs.append(sign, style=style)
    width = columns - LABEL
    lines = [signs[start : start + width] for start in range(0, len(signs), width)]
    return [whole_line(label("page map" if place == 0 else "").append_text(line)) for place, line in enumerate(lines)]


def legend(columns: int) -> list[Text]:
    """Draw what the signs mean, on as many lines as that takes."""
    lines = [label("")]
    for sign, style, name in STATES.values():
        entry = Text.assemble((sign, style), (f" {name}", "bright_black"))
        apart = 2 if len(lines[-1]) > LABEL else 0
        if apart and len(lines[-1]) + apart + len(entry) > columns:
            lines.append(label(""))
            apart = 0
        lines[-1].append(" " * apart).append_text(entry)
    return [whole_line(line) for line in lines]


def numa(seen: dict[str, Any]) -> list[Text]:
    """Draw where the pool's memory lies, where the node knows."""
    total = sum(share["bytes"] for share in seen["numa"])
    if not total:
        return []
    parts = [f"node {share['node']}: {100 * share['bytes'] / total:.0f} %" for share in seen["numa"]]
    return [whole_line(label("NUMA").append("  ".join(parts)))]


def admits(seen: dict[str, Any], columns: int) -> list[Text]:
    """Draw how Admits ended over the last minutes."""
    history = seen["admits"]
    if not history["series"]:
        return [label("admits").append("none yet", style="bright_black")]
    minutes = history["step"] * history["most_steps"] / 60
    lines = [label("admits").append(f"in the last {minutes:g} min, and since the start", style="bright_black")]
    for series in history["series"]:
        name = series["reason"] or series["result"]
        sparks = max(8, columns - 2 * LABEL - 22)
        line = label(f"  {name}"[: LABEL - 1])
        line.append(f"{sum(series['counts']):>9,} {series['total']:>11,}  ")
        line.append(spark(series["counts"], sparks), style="green" if series["result"] == "granted" else "yellow")
        lines.append(whole_line(line))
    return lines


def spark(counts: Sequence[int], width: int) -> str:
    """Draw counts as one line of bars, the newest at its end."""
    each = max(1, -(-len(counts) // width))
    newest_first = list(reversed(counts))
    sums = [sum(newest_first[start : start + each]) for start in range(0, len(newest_first), each)][:width]
    most = max([*sums, 1])
    return "".join(SPARKS[-(-count * (len(SPARKS) - 1) // most)] for count in reversed(sums))


def swap_in(seen: dict[str, Any]) -> list[Text]:
    """Draw the share of hits per layer group."""
    groups = [group for group in seen["swap_in"] if group["hit_rows"] + group["miss_rows"]]
    if not groups:
        return [label("swap-in").append("no engine reports yet", style="bright_black")]
    lines: list[Text] = []
    for group in groups:
        rows = group["hit_rows"] + group["miss_rows"]
        name = "all layers" if group["layer_group"] == "all" else f"layer group {group['layer_group']}"
        text = f"{100 * group['hit_rows'] / rows:.1f} % of {rows:,} rows were hits"
        lines.append(whole_line(label("swap-in" if not lines else "").append(f"{name}: {text}")))
    return lines


def leases(seen: dict[str, Any], by: str, room: int | None) -> RenderableType:
    """Draw the leases, as many as there is room for."""
    ordered = sorted(seen["leases"], key=lambda lease: (-lease[by], lease["id"]))
    shown = ordered if room is None else ordered[:room]
    rest = seen["leases_total"] - len(shown)
    title = f"{seen['leases_total']:,} leases by {by}" + (f", {rest:,} more" if rest else "")
    drawn = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title=title, title_justify="left", title_style="bold"
    )
    for column, right in (
        ("lease", 0),
        ("state", 0),
        ("age", 1),
        ("tokens", 1),
        ("pages", 1),
        ("runs", 1),
        ("ends in", 1),
    ):
        drawn.add_column(column, justify="right" if right else "left", no_wrap=True)
    for lease in shown:
        ends = "with its engine" if lease["expires_in"] is None else span(lease["expires_in"])
        drawn.add_row(
            lease["id"],
            LEASE_STATES.get(lease["state"], lease["state"]),
            f"{'> ' if lease['older'] else ''}{span(lease['age'])}",
            *(f"{lease[column]:,}" for column in ("tokens", "pages", "extent_count")),
            ends,
        )
    return drawn


def label(text: str) -> Text:
    """Begin a line that is about something."""
    return Text(f"{text:<{LABEL}}", style="", no_wrap=True, overflow="ellipsis")


def whole_line(text: Text) -> Text:
    """Keep to one line, whatever its length."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def tokens(number: int) -> str:
    """Write a length: 8K is 8,192."""
    if number >= 1 << 20 and number % (1 << 20) == 0:
        return f"{number >> 20}M"
    return f"{number >> 10:,}K" if number >= 1 << 10 and number % (1 << 10) == 0 else f"{number:,}"


def span(seconds: float) -> str:
    """Write a length of time in its two largest units."""
    whole = max(0, int(seconds))
    for length, unit, smaller, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // smaller} {small}"
    return f"{whole} s"
