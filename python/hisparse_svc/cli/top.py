"""`hisparse-svc top`: a node at a glance, live in a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output, remote
from hisparse_svc.errors import Gathered, InvalidInput, Problem

if TYPE_CHECKING:
    from rich.console import Console

    from hisparse_svc.client import Client

SHORTEST_S = 0.2
"""Looks closer together would show nothing that eyes can follow, and cost the node a survey each."""


KEY_S = 0.2
"""Longest until a terminal of another size is drawn anew, in seconds."""


@click.command("top")
@options.flag("--interval", "S", "Time between two looks, in seconds.  [1]")
@options.flag(
    "--length", "N", "Say how many more requests of N tokens fit; may be repeated.  [plan's contexts]", many=True
)
@click.option("--once", is_flag=True, help="Print one picture and leave.")
@remote.target
@options.common
def command(
    *,
    interval: str | None,
    length: tuple[Any, ...],
    once: bool,
    target: str | None,
    timeout: str | None,
    as_json: bool,
) -> None:
    """Show a node until `q` or Ctrl-C: pools, what fits, the page map, seats, leases, admissions, swap-in.

    `s` sorts the leases by age, length or pages in turn. The page on the service's HTTP port shows the same.
    With --json one document is printed, and with --once one picture.
    """
    found = Gathered()
    every_s = found.read(_interval, interval) or 1.0
    lengths = remote.lengths(found, length)
    client = found.read(remote.connect, target, timeout)
    found.end()
    assert client is not None  # noqa: S101 - nothing was found, so it was made
    with client:
        if as_json:
            output.emit_json(look(client, lengths))
        elif once:
            screen = output.console()
            from hisparse_svc.cli import top_text  # noqa: PLC0415 - rich costs start-up time

            screen.print(top_text.picture(look(client, lengths), top_text.Size(screen.width, None)))
        else:
            follow(client, lengths, every_s)


def _interval(text: str | None) -> float:
    every_s = remote.seconds("--interval", text, 1.0, zero=False)
    if every_s < SHORTEST_S:
        raise InvalidInput(
            [Problem("--interval", f"{every_s:g}", f"must be at least {SHORTEST_S:g} s", "look less often")]
        )
    return every_s


def look(client: Client, lengths: list[int]) -> dict[str, Any]:
    """Ask once; the answer's message as plain data."""
    from hisparse_svc.rpc import calls  # noqa: PLC0415 - as in `remote`

    call = calls.overview(lengths)
    return call.read(client.send(call))


def follow(client: Client, lengths: list[int], every_s: float) -> None:
    """Draw anew every so often, and at once where the terminal changes its size or a key is pressed."""
    from rich.live import Live  # noqa: PLC0415 - as above

    from hisparse_svc.cli import top_text  # noqa: PLC0415 - as above
    from hisparse_svc.cli.keys import Keys  # noqa: PLC0415 - as above
    from hisparse_svc.errors import HiSparseError  # noqa: PLC0415 - as above

    screen: Console = output.console()
    if not screen.is_terminal:
        rule, remedy = "needs a terminal", "use --once or --json for scripts"
        raise InvalidInput([Problem("stdout", "no terminal", rule, remedy)])
    seen, told, by = look(client, lengths), "", 0
    with Keys() as keys, Live(console=screen, screen=True, auto_refresh=False) as live:
        next_look = time.monotonic() + every_s
        while True:
            size = top_text.Size(screen.size.width, screen.size.height)
            live.update(top_text.picture(seen, size, by=top_text.ORDERS[by], told=told), refresh=True)
            key = keys.wait(min(KEY_S, max(0.0, next_look - time.monotonic())))
            if key == "q":
                return
            if key == "s":
                by = (by + 1) % len(top_text.ORDERS)
            if time.monotonic() >= next_look:
                try:
                    seen, told = look(client, lengths), ""
                except HiSparseError as failure:
                    told = str(failure)
                next_look = time.monotonic() + every_s
