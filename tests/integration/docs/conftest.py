"""Small stand-ins for the big model and the many tasks of the pages' readers."""

import subprocess
import sys
from pathlib import Path

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT
from tests.integration.conftest import VllmServer
from tests.integration.docs.reader import Reader
from tests.integration.real_run import ENGINE_ARGS, Run


class Small:
    """A random model of a megabyte and 60 sums: what a page's run or worker has instead of 8B."""

    def __init__(self, run: Run):
        self.model, self.data = run.model, run.home / "data"
        self._words = run.words[run.words.index("--log-path") + 2 :]

    def run(self, *words: str) -> str:
        """Keys that make a run one iteration of a minute on a CPU."""
        return f"{self.served(*words)} engine.port={free_port()}"

    def served(self, *words: str) -> str:
        """The same for a run whose engine is there."""
        few = ["env_config.train_tasks_rollout_size=12", "env_config.test_tasks_rollout_size=4"]
        kept = {word.partition("=")[0]: word for word in [*self._words, *few]}
        kept |= {word.partition("=")[0].strip("'"): word for word in words}  # as a shell reads them
        kept.pop("engine.port")
        return " ".join(kept.values())

    def collect_at(self, server: VllmServer, *words: str) -> str:
        """Flags and keys of one rollout of 60 training tasks, whose engine is `server`."""
        keys = (f"model_config.base_model={server.model}", f"engine.url={server.url}")
        keys += ("env_config.train_tasks_rollout_size=60", *words)
        flags = "--rl-phase rollout --rollout-split train-only --max-iterations 1 --debug-mode"
        return f"{flags} {self.served(*keys)}"

    @property
    def worker(self) -> str:
        return f"--model {self.model} --capacity 4 --engine-args '{ENGINE_ARGS}'"

    def give_tasks(self, reader: Reader) -> None:
        """Write the files of `--data-path /home/user`."""
        for split in ("train", "test"):
            Path(reader.home / f"{split}.jsonl").write_text((self.data / f"{split}.jsonl").read_text())


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Small:
    return Small(Run(tmp_path_factory.mktemp("small")))


class Taught:
    """The quickstart's model, which is right half of the time, and a few of its tasks: some groups teach."""

    def __init__(self, folder: Path):
        self.model, self.data = folder / "base-model", folder / "tasks"
        few = ["quickstart", "--out", str(self.data), "--train-size", "48", "--test-size", "8"]
        for script, *words in (["make_tasks.py", *few], ["teach_base_model.py", "--out", str(self.model)]):
            subprocess.run([sys.executable, str(PROJECT_ROOT / "data" / script), *words], check=True)

    def run(self, *words: str) -> str:
        """Flags and keys that make a streaming run one iteration of a minute on a CPU."""
        paths = f"--data-path {self.data} --log-path /home/user/exp2 --rl-phase both --eval-interval 6"
        few = (
            "env_config.train_tasks_rollout_size=16 rollout.group_size=4 trainer.mini_batches=2 page.port=off"
        )
        model = f"+experiment=quickstart_grpo model_config.base_model={self.model}"
        return " ".join([f"{paths} --max-iterations 1 {model} {few} trainer.loss.advantage=grpo", *words])


@pytest.fixture(scope="session")
def taught(tmp_path_factory) -> Taught:
    return Taught(tmp_path_factory.mktemp("taught"))
