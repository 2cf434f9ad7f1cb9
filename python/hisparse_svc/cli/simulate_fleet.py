"""`hisparse-svc simulate-fleet`: routers and nodes in virtual time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from hisparse_svc.cli import options, output, signals, simulate_fleet_file, simulate_fleet_plot
from hisparse_svc.cli.simulate_fleet_medians import medians
from hisparse_svc.errors import Gathered, InvalidInput, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from hisparse_svc._core import Trace
    from hisparse_svc.replay.simulated_fleet import Wanted

LISTS = {"nodes": "nodes", "staleness": "staleness_s", "seeds": "seeds"}
"""Flags that hold several numbers, and what they are in `Wanted`."""

SINGLE = {"routers": "routers", "seats": "seats", "pages": "host_pages"}
"""Flags that hold one whole number."""

SHARES = {"load": "load_milli", "deaths": "deaths_milli", "slow": "slow_milli"}
"""Flags that hold a share of one, kept in thousandths."""

TIMES = {"seconds": "measured_s", "warm": "warm_s", "patience": "patience_s"}
"""Flags that hold seconds."""

FLAGS = {
    "load_milli": "load",
    "deaths_milli": "deaths",
    "slow_milli": "slow",
    "requests": "seconds",
    "policy": "policies",
}
"""Fields of the core's setup that a flag names otherwise."""

HELP = "see `hisparse-svc simulate-fleet --help`"


@click.command("simulate-fleet")
@options.flag("--nodes", "N,N", "Sizes of the fleet, up to 10,000.  [100]")
@options.flag("--routers", "N", "Routers that share nothing, up to 100.  [100]")
@options.flag("--staleness", "S,S", "Seconds until a router sees a node's change.  [0,0.5,2,5]")
@options.flag("--policies", "NAME:N,…", "Policies, and how many nodes each compares.  [the nine of docs/fleet.md]")
@options.flag("--choices", "N", "Nodes that a policy compares where it does not say so itself.  [2]")
@options.flag("--load", "R", "Share of the fleet that the requests take on average.  [0.9]")
@options.flag("--seeds", "N,N", "Each plays other arrivals and faults; the table shows medians.  [1]")
@options.flag("--seconds", "S", "Virtual seconds whose requests are counted.  [30]")
@options.flag("--warm", "S", "Virtual seconds before them.  [20]")
@options.flag("--trace", "TRACE.jsonl", "Lengths of the requests, a Mooncake trace.  [the bundled sample]")
@options.flag("--deaths", "R", "Share of the nodes that die once; at least one node where it is not 0.  [0.01]")
@options.flag("--slow", "R", "Share of the nodes that answer up to 1.4 s late; likewise.  [0.02]")
@click.option("--no-bursts", is_flag=True, help="Spread arrivals evenly: else a quarter comes in a tenth of the time.")
@options.flag("--patience", "S", "Seconds a request waits for room.  [5]")
@options.flag("--seats", "N", "Seats of a node.  [8]")
@options.flag("--pages", "N", "Host pages of a node.  [2048]")
@click.option(
    "--out", type=options.FileOut(), metavar="FILE", help="Keep the JSON document there as it grows, and go on with it."
)
@click.option("--plot", type=options.FileOut(), metavar="DIR", help="Draw plots, one file for each size of the fleet.")
@options.common
def command(
    *, trace: str | None, no_bursts: bool, out: Path | None, plot: Path | None, as_json: bool, **flags: Any
) -> None:
    """Play a fleet in virtual time: what its routers place, with how many calls, after what wait.

    The routers run the same rules as `hisparse_svc.fleet`. Goodput is the share of the tokens that were granted and
    not lost with their node; attempts are calls of Admit for each lease; imbalance is the fullest node over the mean.
    A run takes time with the square of the nodes: seconds at 1,000, many minutes at 10,000.
    """
    from hisparse_svc.replay.samples import SAMPLE, load_trace  # noqa: PLC0415 - only commands that play traces
    from hisparse_svc.replay.simulated_fleet import Wanted  # noqa: PLC0415 - only this command simulates fleets

    found = Gathered()
    if plot is not None:
        found.read(simulate_fleet_plot.check, plot)
    if out is not None and not out.parent.is_dir():
        found.problems.append(Problem("--out", f'"{out}"', "must lie in a folder that exists", "make the folder first"))
    wanted = Wanted(**read(options.given(flags), found), bursts=not no_bursts)
    played = found.read(load_trace, trace or SAMPLE)
    found.read(checked, wanted, played)
    document = found.read(simulate_fleet_file.begun, out, played) if played is not None else None
    found.end()
    assert document is not None  # noqa: S101 - nothing was found, so all was read
    run(wanted, played, document, out, as_json)
    written = [] if plot is None else simulate_fleet_plot.draw(document, plot)
    if as_json:
        output.emit_json(document)
    else:
        show(document)
        for path in [*([out] if out else []), *written]:
            click.echo(f"Written: {output.plain(str(path))}")


def run(wanted: Wanted, trace: Any, document: dict[str, Any], out: Path | None, quiet: bool) -> None:
    """Play what the document does not have yet, and keep it as it grows."""
    from hisparse_svc.cli.replay import progress  # noqa: PLC0415 - only a command that takes time draws a bar
    from hisparse_svc.replay.simulated_fleet import play  # noqa: PLC0415 - as above

    kept = simulate_fleet_file.Kept(document, out)
    with kept, signals.ended_by_sigterm(), progress(wanted.count(), quiet, "runs") as report:
        for row in play(wanted, trace, report, known=list(document["runs"])):
            kept.add(row)


def checked(wanted: Wanted, trace: Trace | None) -> None:
    """Check a table; problems name flags.

    Raises:
        InvalidInput: Every value that is out of range.
    """
    try:
        wanted.check(trace)
    except InvalidInput as found:
        problems = [
            Problem(f"--{FLAGS.get(problem.field, problem.field)}", *share(problem)) for problem in found.problems
        ]
        raise InvalidInput(problems) from None


def share(problem: Problem) -> tuple[str, str, str]:
    """Give value, rule and remedy of a problem; thousandths as the shares that the flags take."""
    if not problem.field.endswith("_milli"):
        return problem.value, problem.rule, problem.remedy
    most = "10" if problem.field == "load_milli" else "1"
    least = "above 0" if problem.field == "load_milli" else "from 0"
    return f"{int(problem.value) / 1_000:g}", "must be a share in range", f"give a number {least} to {most}"


def read(given: dict[str, Any], found: Gathered) -> dict[str, Any]:
    """Read the flags; what cannot be read is left out, and `found` has why."""
    choices = found.read(whole, "--choices", str(given.pop("choices", default("choices")))) or default("choices")
    fields: dict[str, Any] = {}
    for name, value in given.items():
        flag, text = f"--{name}", str(value)
        if name == "policies":
            fields["rules"] = found.read(rules, text, choices)
        elif name in LISTS:
            kind = seconds if name == "staleness" else whole
            parts = [found.read(kind, flag, part.strip()) for part in text.split(",")]
            fields[LISTS[name]] = None if None in parts else tuple(parts)
        elif name in SINGLE:
            fields[SINGLE[name]] = found.read(whole, flag, text)
        elif name in SHARES:
            number = found.read(seconds, flag, text)
            fields[SHARES[name]] = None if number is None else round(number * 1_000)
        else:
            fields[TIMES[name]] = found.read(seconds, flag, text)
    return {name: value for name, value in fields.items() if value is not None}


def default(name: str) -> Any:
    """Give a default of the simulation."""
    from hisparse_svc.replay.simulated_fleet import DEFAULTS  # noqa: PLC0415 - as above

    return DEFAULTS[name]


def rules(text: str, choices: int) -> tuple[tuple[str, int], ...]:
    """Read `most_left:4,random`."""
    from hisparse_svc import _core  # noqa: PLC0415 - as above

    known = _core.fleet_defaults()["policies"]
    found, read_rules = Gathered(), []
    for part in text.split(","):
        name, colon, number = part.strip().partition(":")
        if name not in known:
            found.problems.append(Problem("--policies", f'"{name}"', "is no policy", f"use {', '.join(known)}"))
        count = found.read(whole, "--policies", number) if colon else choices
        read_rules.append((name, choices if count is None else count))
    found.end()
    return tuple(read_rules)


def whole(flag: str, text: str) -> int:
    """Read a whole number from 0 on."""
    number = options.literal(text)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
        raise InvalidInput([Problem(flag, f'"{text}"', "must be a whole number from 0", HELP)])
    return number


def seconds(flag: str, text: str) -> float:
    """Read a number from 0 on."""
    number = options.literal(text)
    if isinstance(number, (bool, str)) or not math.isfinite(number) or not 0 <= number <= 1e9:
        raise InvalidInput([Problem(flag, f'"{text}"', "must be a number from 0", HELP)])
    return float(number)


def show(document: dict[str, Any]) -> None:
    """Print a line for each fleet, age and rule."""
    figures = ("attempts_per_admit", "wait_p50_s", "wait_p99_s", "imbalance")
    numbers = ("compared", "goodput", "attempts", "p50, s", "p99, s", "imbalance", "seeds")
    rows = medians(document["runs"])
    lines = [
        [
            f"{row['nodes']:,}",
            f"{row['staleness_s']:g}",
            row["policy"],
            f"{row['choices']:,}",
            f"{row['goodput']:.1%}",
            *(f"{row[name]:.2f}" for name in figures),
            f"{row['seeds']:,}",
        ]
        for row in rows
    ]
    output.rows("nodes", "age, s", "policy", *numbers, lines=lines, right=("nodes", "age, s", *numbers))
    wrong = sum(row["overcommit"] + row["two_leases"] for row in rows)
    click.echo("medians over seeds; p50 and p99: wait for a lease")
    click.echo(f"over-committed nodes and requests with two leases, in all runs: {wrong:,}")
