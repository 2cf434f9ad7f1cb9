"""What an import may bring in: seconds of torch or matplotlib must never be paid for a plan."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "matplotlib", "numpy", "grpc", "kubernetes")


def modules_after(code: str) -> set[str]:
    told = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nsys.stderr.write(' '.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in told.stderr.split()}


def test_importing_the_package_brings_in_nothing_heavy() -> None:
    assert not modules_after("import hisparse_svc") & {*HEAVY, "click", "rich"}


RUN = """
from hisparse_svc.cli.app import main
try:
    main({})
except SystemExit as end:
    assert not end.code
"""

COMMANDS = {
    "plan": "['plan', 'glm-5.2', '--json']",
    "validate": "['validate', 'glm-5.2', '--json']",
    "help": "['--help']",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_prints_json_draws_no_tables(name: str) -> None:
    assert not modules_after(RUN.format(COMMANDS[name])) & {*HEAVY, "rich"}


def test_a_plan_for_people_brings_in_no_plotting() -> None:
    assert not modules_after(RUN.format("['plan', 'glm-5.2']")) & set(HEAVY)
