"""docs/how-to/train-with-trl.md, followed on a CPU: its pool, its program, its only engine killed."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.pool.client import ask
from tests.integration.docs.reader import Reader
from tests.unit.docs.documented_blocks import blocks

STEPS, SAMPLES = 48, 128
"""Steps of the page's program, and completions of each."""
_ENGINE_ARGS = (
    "--dtype float32 --enforce-eager --max-model-len 128 --max-num-seqs 128 --no-enable-chunked-prefill"
    " --kv-cache-memory-bytes 67108864 --distributed-executor-backend uni"
)


def changed(program: str, changes: Mapping[str, str]) -> str:
    for written, typed in changes.items():
        assert written in program, written
        program = program.replace(written, typed)
    return program


def versions(printed: str) -> list[tuple[int, str]]:
    """Return each step that the program printed, with the weights that its completions were sampled by."""
    return [(int(step), weights) for step, weights in re.findall(r"step (\d+): weights \[(.*)\]", printed)]


class TrlPage:
    """Types the page's commands; its program runs with `python`, of an environment made as the page says."""

    def __init__(self, folder: Path, python: str):
        self._manager = f"http://127.0.0.1:{free_port()}"
        instead = {
            "http://127.0.0.1:5000": self._manager,
            "manager model=": f"manager port={self._manager.rpartition(':')[2]} model=",
            "--gpus 0": f"--engine-args '{_ENGINE_ARGS}'",
            "env/bin/python trl_grpo.py": f"{python} trl_grpo.py",
        }
        self._reader = Reader("docs/how-to/train-with-trl.md", folder, instead)
        self._reader.environment |= {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(self._reader.checkout),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        *prepare, self._serve = self._reader.commands("python data/make_tasks.py")
        self._reader.types("\n".join(prepare), timeout_s=600)
        *_, self.command = self._reader.commands("python3 -m venv")
        self.folder = self._reader.home / "trl"
        program, self.several = blocks(self._reader.page, "python")
        self.program = changed(program, {"http://127.0.0.1:5000": self._manager})

    def types(self, program: str, command: str, timeout_s: float = 900) -> str:
        """Run a program in place of the page's, and return what it prints."""
        (self.folder / "trl_grpo.py").write_text(program)
        return self._reader.types(command, timeout_s)

    def account(self) -> dict[str, Any]:
        """Return the manager's status."""
        return ask(self._manager, "/status", (self.folder / "pool.token").read_text().strip())

    @contextmanager
    def trained_past_a_kill(self, program: str) -> Iterator[str]:
        """Run a program over the page's pool, whose only engine is killed in mid-step, and another joins.

        Gives what the program printed; the pool and its engine go on until the block ends.
        """
        (self.folder / "trl_grpo.py").write_text(program)
        running, join = self._reader.leaves_running, self._reader.block("bash scripts/join_pool.sh")
        with running(self._serve) as pool, running(join) as engine:
            engine.wait_for("is registered", 300)
            with running(self.command) as training:
                training.wait_for("step 15: weights", 600)
                training.wait_until(lambda: self.account()["requests"]["running"], 60)
                os.killpg(engine.process.pid, signal.SIGKILL)
                with running(join) as other:
                    yield training.ends_well(900)
                    assert other.process.poll() is None
            assert pool.process.poll() is None
