"""The core's keys, the command's flags and the function's keywords are one list, written three times."""

import inspect

import click
import pytest
from hisparse_svc import _core, plan, validate
from hisparse_svc.cli.plan import command as plan_command
from hisparse_svc.cli.validate import command as validate_command

ONLY_ON_THE_COMMAND_LINE = {"model", "as_json", "debug", "plot"}
KEYS = {name: set(_core.tables()[f"{name}_keys"]) for name in ("plan", "validate")}


def flags(command: click.Command) -> set[str]:
    names = {parameter.name or "" for parameter in command.params} - ONLY_ON_THE_COMMAND_LINE
    return {"hisparse" if name == "no_hisparse" else name for name in names}


@pytest.mark.parametrize(("name", "command"), [("plan", plan_command), ("validate", validate_command)])
def test_the_command_has_a_flag_for_every_key_of_the_core(name: str, command: click.Command) -> None:
    assert flags(command) == KEYS[name]


@pytest.mark.parametrize(("name", "function"), [("plan", plan), ("validate", validate)])
def test_the_function_has_a_keyword_for_every_key_of_the_core(name: str, function: object) -> None:
    assert callable(function)
    assert set(inspect.signature(function).parameters) - {"model"} == KEYS[name]
