"""A model of a trainer that was killed between its last step and its model."""

from rl_agent.paths import RunPaths
from rl_agent.served_model import versions
from rl_agent.trainer.grpo.checkpoint.promote import ModelOrigin, promote
from tests.unit.safetensors_files import write_model


def test_a_process_that_made_no_step_itself_puts_its_model_in_place(tmp_path):
    paths, base = RunPaths(tmp_path), write_model(tmp_path / "base")
    paths.checkpoints.mkdir()
    checkpoint = tmp_path / "step-3"
    checkpoint.mkdir()
    found_in_checkpoint = {"steps": 0.0, "total_steps": 3.0}

    origin = ModelOrigin(1, "run", 1, found_in_checkpoint)
    model = write_model(tmp_path / "model")
    promote(paths, model, checkpoint, origin, current=base, keep=2, pinned=())

    served = versions.served_folder(paths)
    assert served == paths.version_dir(1)
    record = versions.read_record(served)
    assert (record.update_steps, record.samples) == (3, 0)
