"""One run's record with wandb, as `recorder` uses it. The only file that imports wandb."""

import logging
from contextlib import suppress

from rl_agent.config import Plan

INIT_TIMEOUT_S = 15.0
FINISH_TIMEOUT_S = 8.0
"""To upload the rest at the end; wandb takes it a second time at the process's end. All together is less than
run.sh waits for the recorder."""

log = logging.getLogger(__name__)


class WandbRecord:
    """Opened by its making, and again after a failure: what is left of the one before is given up first."""

    def __init__(self, plan: Plan, mode: str) -> None:
        import wandb

        with suppress(Exception):
            wandb.teardown()  # its process may be gone
        config = plan.config
        self._is_offline = mode == "offline"
        self._run = wandb.init(
            project=config.wandb.project,
            entity=config.wandb.entity,
            name=config.run_name,
            id=plan.run_id,
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
        self.next_step = self._run.starting_step

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step, commit=True)

    def close(self) -> None:
        folder = self._run.settings.sync_dir
        try:
            self._run.finish()
        except BaseException:
            log.warning("wandb has not all of this run; upload it with: wandb sync %s", folder)
            raise
        if self._is_offline:
            log.info("wandb itself has not all of this run; upload it with: wandb sync %s", folder)
