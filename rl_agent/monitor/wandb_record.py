"""A run of wandb as `recorder` uses it; the only module that imports wandb."""

import logging
from contextlib import suppress

from rl_agent.config import Plan

INIT_TIMEOUT_S = 15.0
FINISH_TIMEOUT_S = 8.0
"""To upload the rest at the end; wandb may take as long again when the process ends. Together this is less
than run.sh waits for the recorder."""

log = logging.getLogger(__name__)


class WandbRecord:
    """A run of wandb, opened by the constructor; what a failed one left is torn down first."""

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
            log.warning(
                "wandb does not have all metrics of this run; upload them with: wandb sync %s", folder
            )
            raise
        if self._is_offline:
            log.info(
                "wandb has no metrics that were recorded offline; upload them with: wandb sync %s", folder
            )
