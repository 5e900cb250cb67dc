"""The tables of the streaming loop's benchmark say what its runs had."""

import json

import pytest

from benchmarks.trainer.stream_outcome import Outcome, print_table
from tests.support.rollout_setup import make_plan


@pytest.mark.parametrize("processes", [None, 2])
def test_on_a_cpu_each_process_of_the_trainer_is_a_device(tmp_path, capsys, processes):
    words = ("trainer=grpo_cpu", f"trainer.nproc_per_node={processes or 'null'}")
    plan = make_plan(tmp_path, *words, engine_url="http://127.0.0.1:1")
    folder = plan.paths.run_dir(plan.run_id)
    folder.mkdir(parents=True)
    plan.write(folder / "plan.json")
    plan.paths.timeline.write_text(json.dumps({"name": "rollout", "start": 0.0, "end": 1.0}) + "\n")
    update = {"tokens": 30, "model_s": 0.5, "waiting_s": 1.0, "recomputed_tokens": 0}
    update = {f"update/{key}": value for key, value in update.items()} | {"update/prefilled_again_tokens": 0}
    plan.paths.metrics.write_text("".join(json.dumps(update | {"time": t + 0.5}) + "\n" for t in (2, 5)))

    outcome = Outcome.of("disaggregated", plan.paths, renting=1)
    print_table([outcome])

    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[2].split("|")]
    assert row[1:4] == ["disaggregated", f"{processes or 1} + 1", "10"]
