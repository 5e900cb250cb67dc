"""A checkpoint says of which trained weights it is."""

import pytest

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.checkpoint.progress import check_kind
from rl_agent.trainer.grpo.checkpoint.states import write_state
from tests.integration.trainer.settings import lora_settings


def test_a_checkpoint_of_other_weights_is_refused(tmp_path):
    write_state(tmp_path, {"lora": {"rank": 4, "alpha": 8, "targets": "all-linear"}})
    check_kind(tmp_path, lora_settings(rank=4), trains_tower=False)
    for other in ({"rank": 8}, {"rank": None}, {"rank": 4, "targets": ["q_proj"]}):
        with pytest.raises(ConfigError, match=r"was made with trainer.lora="):
            check_kind(tmp_path, lora_settings(**other), trains_tower=False)
