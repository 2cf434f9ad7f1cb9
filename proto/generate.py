"""Python code from `proto/`: `python proto/generate.py [FOLDER]`, which `make proto` runs.

::

    hisparse/v1/types.proto ──protoc──► types_pb2.py, types_pb2.pyi ──imports made ours──► hisparse_svc/_proto/

Messages only: the client addresses methods by their names in the descriptors, so there are no stubs to keep. Code made
by protobuf 6 loads under 6 and 7 and is refused by 8; the generator's version is therefore pinned, in `pyproject.toml`.
"""

from __future__ import annotations

import importlib.resources
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).parent
PACKAGE = PROTO.parent / "python/hisparse_svc/_proto"
INIT = '"""Messages of `hisparse.v1`, made from `proto/` by `make proto`. Private: use `hisparse_svc.Client`."""\n'


def generate(into: Path) -> None:
    """Write the package to a folder, replacing what was made there before."""
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("hisparse/v1/*.proto"))
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as scratch:
        arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"--python_out={scratch}", f"--pyi_out={scratch}"]
        if protoc.main([*arguments, *sources]) != 0:
            sys.exit("protoc refused proto/; see above")
        made = {path.name: path.read_text(encoding="utf-8") for path in Path(scratch).rglob("*_pb2.py*")}
    into.mkdir(parents=True, exist_ok=True)
    for old in into.glob("*_pb2.py*"):
        old.unlink()
    for name, text in made.items():
        ours = re.sub(r"^from hisparse\.v1 import", "from hisparse_svc._proto import", text, flags=re.MULTILINE)
        (into / name).write_text(ours, encoding="utf-8")
    (into / "__init__.py").write_text(INIT, encoding="utf-8")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
