"""A machine that `pool scale` may start: a worker with a simulated engine, until TERM.

python tests/integration/pool/scale/machine.py MANAGER NAME KIND PRICE FOLDER [INTERVAL_S]
"""

import asyncio
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tests.integration.pool.workers import worker


async def main(manager: str, name: str, kind: str, price: str, own: Path, interval_s: str = "0.01") -> None:
    leaving = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, leaving.set)
    more = {"name": name, "kind": kind, "price_per_hour": float(price), "is_direct": False, "capacity": 4}
    extra = ("--interval", interval_s, "--as-asked")
    async with worker(manager, own, extra=extra, drain_s=3.0, **more) as (told, job):
        waiting = asyncio.ensure_future(leaving.wait())
        await asyncio.wait([waiting, job], return_when=asyncio.FIRST_COMPLETED)
        told.set()
        waiting.cancel()


if __name__ == "__main__":
    manager, name, kind, price, folder, *interval = sys.argv[1:]
    own = Path(folder, f"machine-{name}")
    own.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(manager, name, kind, price, own, *interval))
