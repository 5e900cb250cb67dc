"""What the pool's journal costs: requests acknowledged per second, in SQLite and in a file of lines.

    python benchmarks/pool/journal.py [--clients 16 256] [--prompt 2000] [--tokens 500] [--seconds 4]
                                      [--rounds 3] [--folder .]

Each client submits a request of `--prompt` tokens, waits until it is on the disk, lets it end with
`--tokens` tokens, waits for that, and goes on with the next one. Many clients share one commit: whoever
comes while the disk writes is in the next one. `sqlite` is the manager's journal. `file` is the least that
any journal has to do: it appends the same JSON to a file, with one fsync for all, and never uses room again.

Both run in the same process, by turns, so that a busy machine or disk slows both.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.flag_parser import FlagParser
from rl_agent.pool.runtime.journal import Journal, Write
from rl_agent.pool.runtime.journal_rows import acknowledged_writes, end_writes, submission_write
from rl_agent.pool.runtime.results import ClockOffsets, Submission
from rl_agent.pool.schemas import BatchItem, EndedRequest


class File(Journal):
    """The same group commit, into a file that is only appended to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._descriptor = os.open(path.with_suffix(".lines"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, writes: list[Write]) -> None:
        texts = (value for _, row in writes for value in row if isinstance(value, str | bytes))
        content = memoryview(b"\n".join(one if isinstance(one, bytes) else one.encode() for one in texts))
        while content:
            content = content[os.write(self._descriptor, content) :]
        os.fsync(self._descriptor)


KINDS = {"sqlite": Journal, "file": File}


async def acknowledged(journal: Journal, clients: int, options: argparse.Namespace) -> tuple[float, float]:
    """Requests per second that were submitted and ended; the median wait of a submission in ms."""
    random_, zero, cursor, waits = random.Random(0), ClockOffsets.of(0.0), 0, []
    prompt = tuple(random_.randrange(150_000) for _ in range(options.prompt))
    tokens = tuple(random_.randrange(150_000) for _ in range(options.tokens))
    logprobs = tuple(-random_.random() for _ in tokens)
    begun = time.monotonic()

    async def client(number: int) -> None:
        nonlocal cursor
        while time.monotonic() < begun + options.seconds:
            item = BatchItem.model_construct(
                id=f"{number}-{cursor}", prompt_token_ids=prompt, max_tokens=4096, sampling={}
            )
            began = time.monotonic()
            await journal.commit([submission_write("run", Submission(item, False, 0.0), zero)])
            waits.append(time.monotonic() - began)
            cursor += 1
            sample = EndedRequest.model_construct(
                cursor=cursor, id=item.id, group=None, is_completed=True, failure="", token_ids=tokens
            ).model_copy(update={"logprobs": logprobs})
            await journal.commit(end_writes("run", sample, [sample]))
            if cursor % clients == 0:
                journal.append(acknowledged_writes("run", cursor - clients))

    writing = asyncio.create_task(journal.run())
    await asyncio.gather(*(client(number) for number in range(clients)))
    seconds = time.monotonic() - begun
    writing.cancel()
    await asyncio.wait([writing])
    return len(waits) / seconds, 1000 * statistics.median(waits)


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    options = parser.parse_args()
    for clients in options.clients:
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(options.rounds):
            for kind in sorted(KINDS, reverse=number % 2 == 1):
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    journal = KINDS[kind](Path(folder, "journal"))
                    rate, wait_ms = asyncio.run(acknowledged(journal, clients, options))
                rates[kind].append(rate)
                print(f"{clients:4} clients, {kind:6}: {rate:6.0f} requests/s, median wait {wait_ms:5.1f} ms")
        medians = {kind: statistics.median(found) for kind, found in rates.items()}
        share = medians["sqlite"] / medians["file"]
        print(f"{clients:4} clients, medians: {medians['sqlite']:.0f} and {medians['file']:.0f}: {share:.2f}")
    return 0


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
