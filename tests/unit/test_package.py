import importlib.util
import re
import subprocess
import sys

import hisparse_svc

from tests.conftest import ROOT


def test_the_version_comes_from_the_native_module() -> None:
    assert hisparse_svc.__version__


def test_what_the_readme_calls_not_here_yet_is_not_here() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.search(r"^Not here yet: (.+?)\n\n", readme, re.MULTILINE | re.DOTALL)
    absent = re.findall(r"`(hisparse_svc\.[\w.]+)`", said.group(1)) if said else []
    assert [name for name in absent if importlib.util.find_spec(name)] == []


def test_every_public_name_is_there_and_none_costs_its_module_before_it_is_used() -> None:
    assert {name for name in hisparse_svc.__all__ if not hasattr(hisparse_svc, name)} == set()
    assert set(hisparse_svc.__all__) <= set(dir(hisparse_svc))
    code = "import sys, hisparse_svc; print([name for name in sys.modules if name.startswith('hisparse_svc.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
