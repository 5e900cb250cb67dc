"""docs/how-to/add-an-environment.md, typed from the class to the episode; its port is a free one."""

import json

import pytest
import yaml

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from tests.integration.docs.reader import Reader
from tests.unit.docs.documented_blocks import blocks

PAGE = "docs/how-to/add-an-environment.md"
TASKS, SIBLINGS, ITERATIONS = 8, 4, 2
OF_SUMS = '''
by_tests = score


def score(completion, answer, **columns):
    """What the quickstart's model says is the middle of a program; some of it is no Python."""
    program = f"```python\\nprint({completion.strip()})\\n```"
    return by_tests(program, [{"input": "", "output": answer}])
'''


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_model_plays_the_environment_of_the_page_and_is_shown(tmp_path):
    experiment = "+experiment=quickstart"
    reader = Reader(PAGE, tmp_path, {experiment: f"{experiment} engine.port={free_port()}"})
    _, code, *_ = blocks(reader.page, "python")
    (reader.checkout / "rl_agent/env/guess_number.py").write_text(code)
    config = reader.checkout / "configs/env/default.yaml"
    (kinds,) = (yaml.safe_load(text)["kinds"] for text in blocks(reader.page, "yaml"))
    settings = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(settings | {"kinds": settings["kinds"] | kinds}))
    (reader.home / "train.jsonl").write_text(blocks(reader.page, "json")[1])

    teach, dry_run, collect, listed, shown = reader.commands("python data/teach_base_model.py")
    reader.types(teach, timeout_s=300)
    reader.types(dry_run)
    assert not (reader.home / "guess").exists()
    reader.types(collect, timeout_s=600)
    assert "guess-1:0:0" in reader.types(listed)
    assert "Guess my number. It is between 1 and 100." in reader.types(shown)


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_grpo_trains_on_programs_that_run_in_the_sandbox(tmp_path, taught):
    words = f"+experiment=quickstart_grpo model_config.base_model={taught.model} page.port=off"
    words += f" env_config.train_tasks_rollout_size={TASKS} rollout.group_size={SIBLINGS}"
    words += " trainer.mini_batches=1 env_config.server_size=8"
    instead = {
        "--eval-interval 1": f"--no-final-eval --eval-interval 6 --max-iterations {ITERATIONS} {words}",
        "trainer=grpo trainer.placement=hybrid": "",
    }
    reader = Reader(PAGE, tmp_path, instead)
    (code,) = (text for text in blocks(reader.page, "python") if "run_python" in text)
    (reader.home / "my_rewards.py").write_text(code + OF_SUMS)
    lines = list(map(json.loads, (taught.data / "train.jsonl").read_text().splitlines()))
    for split, some in (("test", lines[:2]), ("train", lines[2 : 2 + TASKS])):
        tasks = ({name: line[name] for name in ("task_id", "prompt", "answer")} for line in some)
        (reader.home / f"{split}.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    reader.types(
        reader.block("bash scripts/run.sh --data-path /home/user --log-path /home/user/hello"), timeout_s=1500
    )

    paths = RunPaths(reader.home / "hello")
    rewards = []
    for iteration in range(1, ITERATIONS + 1):
        for episode in read_iteration(paths, "train", iteration, TRAJECTORY):
            says = episode.steps[0].generation.text.strip()
            assert episode.reward == float(says == episode.task.answer), says
            rewards.append(episode.reward)
    assert len(rewards) == ITERATIONS * TASKS * SIBLINGS and {0.0, 1.0} == set(rewards)
    steps = [record for record in metrics.read(paths.metrics) if "update_step" in record]
    assert sum(step["trainer/episodes"] for step in steps) == len(rewards)
