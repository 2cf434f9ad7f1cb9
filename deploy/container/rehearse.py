#!/usr/bin/env python3
"""The Dockerfile's steps of the service in a Debian root, and the service in it as a pod has it: for want of an engine.

::

    debootstrap ─► root ─┬─ copy: RUN lines of `build`, the wheel in place of cargo ─► /opt/hisparse
                         └─ RUN lines of `base`, + /opt/hisparse ─► read-only, user 10001, no capability ─► serve, admit

As root, with debootstrap and util-linux: `python deploy/container/rehearse.py WHEEL FOLDER`; the wheel is one that
`maturin build` makes. It ends with an error where a step fails. The image's layers and metadata are not made.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOST_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""What lets the root reach the registries that this machine reaches."""

AS_A_POD = """
set -e
ip link set lo up
mount --bind {root} {root}
mount -t tmpfs -o mode=0770,uid=10001,gid=10001,size=256m tmpfs {root}/run/hisparse
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount -o remount,ro,bind {root}
exec chroot {root} \
    setpriv --reuid 10001 --regid 10001 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs \
    env -i PATH=/opt/hisparse/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 \
    HISPARSE_TARGET=unix:/run/hisparse/hisparse.sock \
    bash -c '
        touch /written 2>/dev/null && {{ echo "error: the root can be written to" >&2; exit 1; }}
        grep -q "^CapEff:.0*$" /proc/self/status || {{ echo "error: it has capabilities" >&2; exit 1; }}
        hisparse-svc {command} --host-pool 256MiB & served=$!
        for _ in $(seq 60); do
            sleep 1
            python3 -c "import urllib.request as u; u.urlopen(\\"http://127.0.0.1:7412/readyz\\")" 2>/dev/null && break
        done
        hisparse-svc admit --prompt-tokens 640 --max-new-tokens 0 --json >/dev/null && echo "granted a lease"
        python3 -c "import torch" 2>/dev/null && {{ echo "error: torch is in it" >&2; exit 1; }}
        kill $served; wait $served
    '
"""


def steps(stage: str) -> list[str]:
    """RUN lines of a stage, continued lines joined; cargo's is left out, the wheel stands for it."""
    text = (ROOT / "deploy/container/Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    (body,) = re.findall(rf"^FROM \S+ AS {stage}\n(.*?)(?=^FROM |\Z)", text, re.DOTALL | re.MULTILINE)
    return [line for line in re.findall(r"^RUN (.*)$", body, re.MULTILINE) if "maturin" not in line]


def command() -> str:
    """The image's own command."""
    text = (ROOT / "deploy/container/Dockerfile").read_text(encoding="utf-8")
    (found,) = re.findall(r'^CMD (\["serve".*\])$', text, re.MULTILINE)
    return " ".join(json.loads(found))


def run(*words: str | Path) -> None:
    """Run a command, and end where it fails."""
    sys.stdout.write(f"+ {' '.join(map(str, words))[:160]}\n")
    sys.stdout.flush()
    subprocess.run(list(map(str, words)), check=True)


def reach(root: Path) -> None:
    """Let a root reach the registries; again after each step, since packages bring files of the same name."""
    apt = [path for path in Path("/etc/apt/apt.conf.d").glob("*") if "registry" in path.name or "proxy" in path.name]
    for source in [*map(Path, HOST_FILES), *apt]:
        if source.is_file():
            into = root / source.relative_to("/")
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, into)


def main() -> int:
    """Rehearse."""
    if len(sys.argv) != 3:
        sys.stderr.write(f"error: {sys.argv[0]} WHEEL FOLDER\n")
        return 2
    wheel, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    build, image = folder / "build", folder / "image"
    if not (image / "usr").exists():
        run("debootstrap", "--variant=minbase", "bookworm", image)
    run("cp", "-a", image, build)
    (build / "wheels").mkdir()
    shutil.copyfile(wheel, build / "wheels" / wheel.name)
    (build / "src").mkdir()
    shutil.copyfile(ROOT / "constraints.txt", build / "src/constraints.txt")
    for stage, root in (("build", build), ("base", image)):
        for step in steps(stage):
            reach(root)
            run("chroot", root, "bash", "-c", f"mkdir -p /src && cd /src && {step}")
    run("cp", "-a", build / "opt/hisparse", image / "opt/")
    script = AS_A_POD.format(root=image, command=command())
    run("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", script)
    size = sum(path.lstat().st_size for path in (image / "opt/hisparse").rglob("*")) >> 20
    sys.stdout.write(f"rehearsed: the service is {size} MiB; not built: the image itself, and the target `engine`\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
