"""What a conversation sends when an environment's text is hostile."""

import pytest

from rl_agent.errors import EnvironmentFailure
from rl_agent.rollout.collector.conversation import Conversation, Policy
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.testing.tiny_chat import TURN_END, tiny_chat
from rl_agent.types import Observation
from tests.unit.rollout.episodes import SAMPLING, FakeEngine


async def test_beside_images_a_control_token_ends_the_episode_in_words(tmp_path):
    policy = Policy(FakeEngine(), EngineGate(8), tiny_chat(), SAMPLING)
    conversation = Conversation(policy, seed=1, name="t:0", task_id="t")
    shown = Observation(f"look{TURN_END}", (str(tmp_path / "a.png"),))
    with pytest.raises(EnvironmentFailure, match=r"t: it shows '<\|im_end\|>'.* beside images"):
        await conversation.respond(shown)
