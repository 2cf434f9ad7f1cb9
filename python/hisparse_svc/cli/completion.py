"""`hisparse-svc completion SHELL`: the script that teaches a shell this program's commands, flags and presets."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from hisparse_svc.cli import options, output
from hisparse_svc.errors import InvalidInput, Problem

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=options.Words(SHELLS), metavar="bash|zsh|fish")
@options.common
def command(shell: str, as_json: bool) -> None:
    """Print the completion script of a shell.

    \b
    Bash:  echo 'eval "$(hisparse-svc completion bash)"' >> ~/.bashrc
    Zsh:   echo 'eval "$(hisparse-svc completion zsh)"' >> ~/.zshrc
    Fish:  hisparse-svc completion fish > ~/.config/fish/completions/hisparse-svc.fish
    """  # noqa: D301 - click takes a backspace for lines as they stand
    if shell not in SHELLS:
        rule = "must be a shell this program can complete for"
        raise InvalidInput([Problem("SHELL", f'"{shell}"', rule, f"use one of {', '.join(SHELLS)}")])
    root = click.get_current_context().find_root().command
    make = get_completion_class(shell)
    assert make is not None, shell  # noqa: S101 - click has had these three since 8.0
    script = make(root, {}, "hisparse-svc", "_HISPARSE_SVC_COMPLETE").source()
    if as_json:
        output.emit_json({"shell": shell, "script": script})
    else:
        click.echo(script)
