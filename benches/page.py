"""What the page costs with 1,000 leases: pictures while scrolling, CPU time of its thread, and bytes of an event.

Usage: ``python benches/page.py --out benches/results/page.json`` after ``make build``; needs Chromium. The browser, the
service and a caller that keeps the leases moving share the cores. Chromium makes at most 60 pictures a second, so
16.7 ms on the clock is a picture in time where no other process takes the cores; CPU time does not depend on those.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from hisparse_svc import Client, Request
from serve_load import machine

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.page.browser import Browser, found  # noqa: E402 - the tests' browser is no part of the package

LEASES = 1_000
IDLE_S = 5
NODE = ["--backing", "none", "--host-pool", "256GiB", "--kv-bytes", "120GiB", "--hot-rows", "2048"]
NODE += ["--max-requests", "1200", "--http", "127.0.0.1:0"]
FRAMES = (ROOT / "tests/page/frames.js").read_text(encoding="utf-8")
EVENT_BYTES = """(async () => {
  const answer = await fetch('page/events');
  const reader = answer.body.getReader();
  let text = '';
  while (!text.includes('event: pool') || !text.endsWith('\\n\\n')) {
    const { value } = await reader.read();
    text += new TextDecoder().decode(value);
  }
  await reader.cancel();
  const size = (name) => text.split('\\n\\n').find((part) => part.startsWith(`event: ${name}`)).length;
  return { node: size('node'), pool: size('pool') };
})()"""


def churn(target: str, stop: threading.Event) -> None:
    """Replace leases, some 50 a second."""
    number = 0
    with Client(target) as client:
        while not stop.wait(0.02):
            number += 1
            with client.admit(prompt_tokens=64 * (1 + number % 37)):
                pass


def fill(target: str) -> None:
    """Take the leases."""
    with Client(target) as client:
        for start in range(0, LEASES, 100):
            wanted = [Request(prompt_tokens=64 * (1 + (start + place) % 37), ttl_s=3_600) for place in range(100)]
            client.batch_admit(wanted)


def measured(repeat: int) -> dict[str, Any]:
    """One page, looked at while the ledger changes."""
    program = found()
    if program is None:
        sys.exit("no Chromium on this machine")
    with tempfile.TemporaryDirectory() as home:
        socket = f"{home}/h.sock"
        command = [sys.executable, "-m", "hisparse_svc", "serve", *NODE, "--socket", socket]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        address = re.search(r"http://[0-9.:]+", server.stdout.readline())
        assert address is not None
        stop = threading.Event()
        caller = threading.Thread(target=churn, args=(f"unix:{socket}", stop))
        try:
            fill(f"unix:{socket}")
            caller.start()
            with Browser(program, Path(home) / "chromium") as browser:
                browser.look(1600, 1000)
                browser.open(f"{address[0]}/")
                version = browser.call("Browser.getVersion")["product"]
                browser.call("Performance.enable", timeDomain="threadTicks")
                rounds = [scrolled(browser) for _ in range(repeat)]
                idle = cpu_ms(browser)
                time.sleep(IDLE_S)
                idle = (cpu_ms(browser) - idle) / IDLE_S
                sizes = browser.js(EVENT_BYTES)
        finally:
            stop.set()
            caller.join()
            server.terminate()
            server.wait()
    names = rounds[0]
    frames = {name: spread([each[name] for each in rounds]) for name in names}
    return {
        "browser": version,
        "scrolling": frames,
        "standing": {"cpu_ms_per_s": round(idle, 1)},
        "event_bytes": sizes,
    }


def cpu_ms(browser: Browser) -> float:
    """CPU time that the page's thread has had, for scripts, styles, layout and all else."""
    metrics = browser.call("Performance.getMetrics")["metrics"]
    return 1e3 * float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def scrolled(browser: Browser) -> dict[str, float]:
    """Once through all leases: how long pictures took on the clock, and of CPU time."""
    before = cpu_ms(browser)
    found: dict[str, float] = browser.js(f"(async () => {{ {FRAMES} return frames(); }})()")
    return {**found, "cpu_ms_per_frame": round((cpu_ms(browser) - before) / found["frames"], 2)}


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": round(median(values), 2), "min": round(min(values), 2), "max": round(max(values), 2)}


def main() -> None:
    """Measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args()
    document = {
        "what": f"the page with {LEASES} leases, which change 100 times a second, at 1600 x 1000",
        "command": "python benches/page.py --out benches/results/page.json",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "repeat": given.repeat,
        **measured(given.repeat),
    }
    text = json.dumps(document, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
