"""A run of wandb as `recorder` uses it; the only module that imports wandb."""

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rl_agent.config.plan import Plan
from rl_agent.system.files import write_whole

INIT_TIMEOUT_S = 15.0
FINISH_TIMEOUT_S = 8.0
"""The time to upload the rest at the end; wandb may take as long again when the process ends. Together this
is less than run.sh waits for the recorder."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptRun:
    """The wandb run of a log path, whose later runs go on with it as they go on with `metrics.jsonl`."""

    id: str
    offline_steps: int = 0
    """Steps that stand whole in the folders of offline runs, and are not recorded offline again."""

    @classmethod
    def read(cls, path: Path) -> "KeptRun | None":
        try:
            record = json.loads(path.read_bytes())
            return cls(str(record["id"]), int(record["offline_steps"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps(asdict(self)) + "\n")


class WandbRecord:
    """A run of wandb, opened by the constructor; what a failed one left is torn down first."""

    def __init__(self, plan: Plan, mode: str) -> None:
        import wandb

        with suppress(Exception):
            wandb.teardown()  # its process may be gone
        config = plan.config
        self._kept = KeptRun.read(plan.paths.wandb_run) or KeptRun(plan.run_id)
        self._kept_file = plan.paths.wandb_run
        self._kept.write(self._kept_file)
        self._is_offline = mode == "offline"
        self._run = wandb.init(
            project=config.wandb.project,
            entity=config.wandb.entity,
            name=config.run_name,
            id=self._kept.id,
            resume="allow",
            dir=config.log_path,
            config=config.model_dump(mode="json", by_alias=True),
            mode=mode,  # type: ignore[arg-type]
            settings=wandb.Settings(
                console="off",
                silent=True,
                init_timeout=INIT_TIMEOUT_S,
                finish_timeout=FINISH_TIMEOUT_S,
                finish_timeout_raises=True,
            ),
        )
        self._run.define_metric("*", step_metric="iteration")
        for of_steps in ("update_step/*", "trainer/*"):
            self._run.define_metric(of_steps, step_metric="update_step")
        self.next_step = max(self._run.starting_step, self._kept.offline_steps if self._is_offline else 0)
        self._logged = self.next_step

    def log(self, step: int, numbers: dict[str, float], samples: dict[str, list[dict[str, object]]]) -> None:
        import wandb

        tables = {
            name: wandb.Table(list(rows[0]), [list(row.values()) for row in rows])
            for name, rows in samples.items()
        }
        self._run.log({**numbers, **tables}, step=step, commit=True)
        self._logged = step + 1

    def close(self) -> None:
        folder = self._run.settings.sync_dir
        try:
            self._run.finish()
        except BaseException:
            log.warning(
                "wandb does not have all metrics of this run; upload them with: wandb sync %s", folder
            )
            raise
        if self._is_offline:
            replace(self._kept, offline_steps=self._logged).write(self._kept_file)
            log.info(
                "wandb has no metrics that were recorded offline; upload them with: wandb sync %s", folder
            )
