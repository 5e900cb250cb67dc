"""What a run can lose at most while ten people look at it: the processor time of its page.

    python benchmarks/page/viewers.py --log-path /home/user/exp1 [--seconds 60]

The real command `page` shows the log path; ten viewers ask for the view of the run every 5 s, as a browser
does, and every fourth time for a search of its trajectories. Whatever the machine does besides, a run cannot
be slowed by more than the page's share of the cores' time. Baseline: the same with nobody looking.
"""

import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import psutil

from rl_agent.flag_parser import FlagParser

VIEWERS = 10
REFRESH_S = 5.0


def view(url: str, name: str, begins_after_s: float, over: threading.Event) -> None:
    over.wait(begins_after_s)
    looks = 0
    while not over.is_set():
        looks += 1
        path = f"/runs/{name}/episodes?text=a&page={looks}" if looks % 4 == 0 else f"/runs/{name}/"
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            answer.read()
        over.wait(REFRESH_S)


def share(page: psutil.Process, url: str, name: str, viewers: int, seconds: float) -> float:
    """Return the page's share of all cores' time while so many look."""
    over = threading.Event()
    threads = [
        threading.Thread(target=view, args=(url, name, n * REFRESH_S / max(1, viewers), over))
        for n in range(viewers)
    ]
    before, began = sum(page.cpu_times()[:2]), time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    used, passed = sum(page.cpu_times()[:2]) - before, time.monotonic() - began
    over.set()
    for thread in threads:
        thread.join()
    return used / passed / (os.cpu_count() or 1)


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--log-path", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    name = options.log_path.resolve().name
    words = [sys.executable, "-m", "rl_agent.cli", "page", "--log-path", str(options.log_path), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        try:
            url, process = page.stdout.readline().split()[-1], psutil.Process(page.pid)
            nobody = share(process, url, name, 0, options.seconds / 4)
            urllib.request.urlopen(f"{url}/runs/{name}/episodes", timeout=600).close()
            time.sleep(5)  # the index is there
            print(f"nobody looks:       {nobody:.3%} of {os.cpu_count()} cores")
            print(f"{VIEWERS} people look:     {share(process, url, name, VIEWERS, options.seconds):.3%}")
        finally:
            page.terminate()


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
