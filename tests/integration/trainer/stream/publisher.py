"""A trainer's publishing side, as a process: publishes weights at each line of stdin, and goes on.

python tests/integration/trainer/stream/publisher.py MANAGER MANAGER_FILE FOLDER VALUE...
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import torch

from rl_agent.errors import HarnessError
from rl_agent.trainer.grpo.model.file_layout import FileLayout
from rl_agent.trainer.grpo.model.parallel import join_ranks
from rl_agent.trainer.grpo.publish import feed as publishing
from rl_agent.trainer.grpo.publish.feed import WeightFeed
from tests.integration.trainer.settings import batch_settings
from tests.integration.trainer.stream.stream_run import stream_settings


class Policy:
    """The part of a policy that is published."""

    def __init__(self, value: float) -> None:
        self.model = torch.nn.Linear(64, 64, bias=False)
        torch.nn.init.constant_(self.model.weight, value)
        self.files = FileLayout()


def main(url: str, file: Path, folder: Path, *values: float) -> int:
    stream = stream_settings(folder, folder, url, manager_file=file).stream
    assert stream is not None
    publishing.ANNOUNCE_EVERY_S = 0.1
    sys.stdin.readline()  # of the first one
    try:
        with (
            join_ranks(1, timeout_s=30) as ranks,
            WeightFeed(stream, ranks, dtype="float32", batch=batch_settings()) as feed,
        ):
            for number, value in enumerate(values, start=1):
                if number > 1:
                    sys.stdin.readline()
                number = feed.publish(number, Policy(value), lambda number: None)  # type: ignore[arg-type]
                feed.wait_until_known(120, lambda: False)
                print(number, flush=True)
            while True:
                feed.check_place()
                time.sleep(0.02)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(float, sys.argv[4:])))
