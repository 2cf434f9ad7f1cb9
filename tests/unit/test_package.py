import importlib.util
import re

import hisparse_svc

from tests.conftest import ROOT


def test_the_version_comes_from_the_native_module() -> None:
    assert hisparse_svc.__version__


def test_what_the_readme_calls_not_here_yet_is_not_here() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.search(r"^Not here yet: (.+?)\n\n", readme, re.MULTILINE | re.DOTALL)
    absent = re.findall(r"`(hisparse_svc\.[\w.]+)`", said.group(1)) if said else []
    assert [name for name in absent if importlib.util.find_spec(name)] == []
