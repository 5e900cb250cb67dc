"""docs/how-to/add-an-environment.md, typed from the class to the episode; its port is a free one."""

import pytest
import yaml

from rl_agent.cluster.shared_fs.address import free_port
from tests.integration.docs.reader import Reader
from tests.unit.docs.documented_blocks import blocks

PAGE = "docs/how-to/add-an-environment.md"


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
    reader.types(teach)
    reader.types(dry_run)
    assert not (reader.home / "guess").exists()
    reader.types(collect, timeout_s=600)
    assert "guess-1:0:0" in reader.types(listed)
    assert "Guess my number. It is between 1 and 100." in reader.types(shown)
