"""Publishing: from a finished training to a served version."""

import os
from pathlib import Path

import pytest

from rl_agent.engine.model import resolve_model
from rl_agent.errors import PublishError
from rl_agent.served_model.versions import read_record
from rl_agent.trainer.llamafactory.publish import publish
from tests.unit.trainer.llamafactory.trainings import finish_training, kept, publish_iteration, served_value


def test_the_first_publish_serves_version_one(plan):
    checkpoint = finish_training(plan, 1)

    model = publish(plan, 1, os.environ, now=1000.0)

    assert model == resolve_model(plan.config)
    assert (model.weight_version, Path(model.path).name) == (1, "version-000001")
    assert plan.paths.model_link.readlink() == Path("checkpoints/version-000001")
    assert served_value(plan) == 0.125
    record = read_record(Path(model.path))
    assert (record.previous, record.iteration, record.update_steps, record.samples) == (None, 1, 4, 5)
    assert not checkpoint.exists()


def test_an_engine_finds_no_pickle_and_the_trainer_finds_its_state(plan):
    folder = Path(publish_iteration(plan, 1).path)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("chat_template.jinja", "config.json", "model.safetensors", "published.json"),
        *("tokenizer.json", "tokenizer_config.json", "trainer"),
    ]
    assert {"optimizer.pt", "scheduler.pt", "trainer_state.json"} <= {
        p.name for p in (folder / "trainer").iterdir()
    }
    assert (folder / "model.safetensors").samefile(folder / "trainer" / "model.safetensors")


def test_without_checkpoints_the_final_model_is_taken(plan):
    checkpoint = finish_training(plan, 1)
    training = plan.paths.training_dir(1)
    for path in list(checkpoint.iterdir()):
        path.rename(training / path.name)
    checkpoint.rmdir()
    assert publish(plan, 1, os.environ, now=1.0).weight_version == 1
    assert served_value(plan) == 0.125


def test_a_training_without_result_is_an_error_that_changes_nothing(plan):
    publish_iteration(plan, 1)
    with pytest.raises(PublishError, match="left no finished checkpoint"):
        publish(plan, 2, os.environ, now=2.0)
    assert served_value(plan) == 0.125


def test_publishing_twice_makes_one_version(plan):
    first = publish_iteration(plan, 1)
    assert publish(plan, 1, os.environ, now=2000.0) == first
    assert kept(plan) == ["version-000001"]


def test_training_again_in_the_same_iteration_makes_another_version(plan):
    publish_iteration(plan, 1)
    finish_training(plan, 1, value=0.75)
    assert publish(plan, 1, os.environ, now=2.0).weight_version == 2
    assert served_value(plan) == 0.75
