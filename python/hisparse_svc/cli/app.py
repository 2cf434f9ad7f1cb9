"""The program: its commands, its exit codes, and how every error is printed.

::

    0  done      2  invalid input or configuration      3  the service cannot be reached      4  the request is refused
    5  `conformance`: the service breaks a rule          6  `drain --wait`: something is still held
    1  a defect of this program      130  interrupted      141  nobody reads the output any more      143  told to stop
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hisparse_svc import files
from hisparse_svc._core import __version__
from hisparse_svc.cli import output
from hisparse_svc.cli.signals import Ended
from hisparse_svc.errors import HiSparseError, InvalidInput, Problem
from hisparse_svc.rpc.refusals import Refused, TurnedAway, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROGRAM = "hisparse-svc"

COMMANDS = {
    "plan": "Say what fits: bytes, tokens, seats and concurrency of a model on a GPU.",
    "validate": "Check a configuration: backends, hot buffer, ratio, host pool.",
    "serve": "Run the service: who may hold how much of this node's KV memory.",
    "capacity": "Say what a node has now.",
    "watch": "Follow a node as it changes.",
    "top": "Watch a node: pools, what fits, the page map, leases, admissions.",
    "leases": "List who holds what.",
    "fleet": "Say what many nodes have: who is there, what fits where, how fresh that is.",
    "publish": "Write a node into the directory of a Kubernetes cluster.",
    "admit": "Reserve what one request needs, or say why not.",
    "release": "Give a lease back.",
    "drain": "Grant nothing new.",
    "replay": "Play a trace: what a node takes of it, and what its device alone would.",
    "trace-topk": "Write a synthetic top-k stream, or say what one holds.",
    "simulate": "Say what replacement policies would miss on top-k streams, and what it would cost.",
    "simulate-fleet": "Play a fleet of many nodes and routers in virtual time.",
    "conformance": "Say whether a service keeps the promises of the interface.",
    "bench": "Time swap-in on this machine's GPU, beside memcpy and the best ordered gather.",
    "models": "List the bundled model presets.",
    "doctor": "Say what this machine can do, and how to make it do more.",
    "completion": "Print the shell completion script.",
}
"""Each command's help line. The module of the same name is imported when the command runs, not before."""


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Tell an interruption and a closed pipe from all else, before click, which has codes of its own for them."""
    try:
        yield
    except KeyboardInterrupt:
        raise Ended(signal.SIGINT) from None
    except BrokenPipeError:
        raise Ended(signal.SIGPIPE) from None
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # rich's way to say it
            raise Ended(signal.SIGPIPE) from None
        raise


class LazyCommands(click.Group):
    """A group that imports a command's module only to run it."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """Read the command line, which may print the help."""
        with ending():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with ending():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the commands in the order of the table above."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        del ctx
        if cmd_name not in COMMANDS:
            near = difflib.get_close_matches(cmd_name, COMMANDS, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(COMMANDS)}"
            raise InvalidInput([Problem("command", f'"{cmd_name}"', "is no command of this program", remedy)])
        module = importlib.import_module(f"hisparse_svc.cli.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command), cmd_name  # noqa: S101 - a command file without a command is a defect
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    """Print the version and leave."""
    if wanted and not ctx.resilient_parsing:
        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit()


@click.command(
    cls=LazyCommands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, help="On an error, print the traceback too.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Print the version."
)
@click.pass_context
def program(ctx: click.Context, debug: bool) -> None:
    """Host-backed KV memory for sparse-attention models: what fits, what is valid, what this machine can do."""
    del debug  # read by `main`
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave with its exit code."""
    output.never_fail_to_encode()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--debug" not in given:  # gRPC writes to stderr what our errors say; it reads this when it is imported
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    code = run(given)
    output.leave_nothing_behind()
    sys.exit(code)


def run(given: list[str]) -> int | None:
    """Run a command line; give its exit code."""
    try:
        code: int | None = program.main(given, prog_name=PROGRAM, standalone_mode=False)
        with ending():
            if sys.stdout is not None:
                sys.stdout.flush()
    except Ended as ended:
        code = interrupted(ended)
    except (KeyboardInterrupt, click.exceptions.Abort):  # click's word for it; it is an `Exception`, so it goes first
        code = interrupted(Ended(signal.SIGINT))
    except Exception as failure:  # the last place that can turn an error into words
        code = report(failure, as_json="--json" in given, debug="--debug" in given)
    return code


def interrupted(ended: Ended) -> int:
    """Say in one line that a signal ended the command, but nothing of a reader who has gone; give the exit code."""
    if ended.exit_code != 128 + signal.SIGPIPE:
        if sys.stderr.isatty():
            click.echo(err=True)  # the terminal has just written ^C
        output.error(ended.text)
    return ended.exit_code


def report(failure: Exception, *, as_json: bool, debug: bool) -> int:
    """Print a failure as errors, and as JSON where that was asked for; give the exit code."""
    if debug:
        import traceback  # noqa: PLC0415 - only ever needed here

        traceback.print_exception(failure)
    code, problems = explain(failure)
    if as_json:
        document = output.problems_document(problems)
        if isinstance(failure, Refused):
            document["problems"][0] |= failure.facts()
        with contextlib.suppress(OSError):  # stdout may be what failed; stderr still tells
            output.emit_json(document)
    for problem in problems:
        output.error(str(problem) if isinstance(failure, InvalidInput) else f"{problem.rule}; {problem.remedy}")
    return code


def explain(failure: Exception) -> tuple[int, list[Problem]]:
    """Give the exit code of a failure, and it as problems with what to do."""
    if isinstance(failure, InvalidInput):
        return failure.exit_code, failure.problems
    if isinstance(failure, HiSparseError):
        return failure.exit_code, [refusal_problem(failure)]
    if isinstance(failure, click.ClickException):
        return 2, [usage_problem(failure)]
    if isinstance(failure, OSError):
        return 2, [file_problem(failure)]
    if isinstance(failure, UnicodeEncodeError) and re.search(r"[\ud800-\udfff]", failure.object):
        value = f'"{files.printable(failure.object)[:80]}"'
        return 2, [
            Problem("text", value, f"must be text in UTF-8: {value} is not", "write it anew, or rename the file")
        ]
    text = f"this program has a defect: {type(failure).__name__}: {failure}"
    return 1, [Problem("program", "failed", text, "run it again with --debug and report what it prints")]


def file_problem(failure: OSError) -> Problem:
    """Say which file or stream failed, and what to do."""
    if failure.filename is None and failure.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        text = f"the output cannot be written: {failure.strerror}"
        return Problem("stdout", "not written", text, "make room for it, or write it elsewhere")
    where = f"{failure.filename}: " if failure.filename else ""
    return Problem(
        "file", str(failure.filename), f"{where}{failure.strerror or failure}", "check the path and its permissions"
    )


def refusal_problem(failure: HiSparseError) -> Problem:
    """Give a service's refusal, or its silence, with the word that programs go by, such as `POOL_BUSY`."""
    text, _, remedy = str(failure).partition("; ")
    if isinstance(failure, Unreachable):
        return Problem("target", "refusing" if isinstance(failure, TurnedAway) else "unreachable", text, remedy)
    refused = failure if isinstance(failure, Refused) else Refused("")
    field = refused.metadata.get("limit") or refused.metadata.get("pool") or "request"
    return Problem(field, refused.reason or "refused", text, remedy or "see the message")


def usage_problem(failure: click.ClickException) -> Problem:
    """Say what is wrong with the command line itself, and what to do."""
    context = getattr(failure, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    remedy = f"run `{path} --help` to see what it takes"
    if isinstance(failure, click.NoSuchOption):
        near = difflib.get_close_matches(failure.option_name, failure.possibilities or [], n=1, cutoff=0)
        told = f"did you mean {near[0]}?" if near else remedy
        return Problem(failure.option_name, "given", f"no such flag: {failure.option_name}", told)
    message = failure.format_message().rstrip(".")
    parameter = getattr(failure, "param", None)
    name = parameter.human_readable_name if parameter is not None else "command line"
    return Problem(name, "given", message[:1].lower() + message[1:], remedy)
