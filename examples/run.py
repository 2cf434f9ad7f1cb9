"""What `make run` shows: a node under the bundled trace, seen from outside. It serves on until Ctrl-C or RUN_SECONDS.

Its socket is its own: no other service is in the way, and nothing that an earlier run left is waited for.

hisparse-svc serve  ◄── Unix socket ──  hisparse-svc capacity, replay sample --speed 20, capacity
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = [sys.executable, "-m", "hisparse_svc"]
NODE = ["--backing", "none", "--host-pool", "160GiB", "--kv-bytes", "20GiB", "--hot-rows", "4096"]
DURING_S = 2.0
"""How long after its start the replay is looked at."""


def show(*words: str) -> None:
    """Run a command as a user would, with what was typed above its output."""
    print(f"\n$ hisparse-svc {' '.join(words)}", flush=True)
    subprocess.run([*PROGRAM, *words], check=True)


def main() -> int:
    """Serve, show, and go on serving."""
    bound = os.environ.pop("RUN_SECONDS", "")
    with tempfile.TemporaryDirectory(prefix="hisparse-run-") as folder:
        return run(Path(folder) / "h.sock", bound)


def run(socket: Path, bound: str) -> int:
    """Do so at this socket, for so many seconds where any are given."""
    words = ["serve", *NODE, "--socket", str(socket)]
    print(f"$ hisparse-svc {' '.join(words)} &", flush=True)
    server = subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    ready = server.stdout.readline()
    if not ready:
        return server.wait()
    print(ready, end="")
    begun = time.monotonic()
    target = ready.split()[1].rstrip(",;")
    try:
        show("capacity", "--length", "32768", "--target", target)
        words = ["replay", "sample", "--speed", "20", "--target", target]
        print(f"\n$ hisparse-svc {' '.join(words)} &", flush=True)
        replay = subprocess.Popen([*PROGRAM, *words])
        time.sleep(DURING_S)
        show("capacity", "--length", "32768", "--target", target)
        if replay.wait() != 0:
            return 1
        show("capacity", "--length", "32768", "--target", target)
        shown = f"hisparse-svc admit --prompt-tokens 4096 --target {target}"
        print(f"\nServing on; try `{shown}` in another terminal. Ctrl-C stops it.", flush=True)
        server.wait(max(float(bound) - (time.monotonic() - begun), 0.0) if bound else None)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        pass
    finally:
        server.terminate()
        code = server.wait()
    print("Stopped.")
    return code


if __name__ == "__main__":
    sys.exit(main())
