"""A peer that failed is skipped until its cooldown ends."""

from rl_agent.weights.sources.cooldown import COOLDOWN_S, Cooldown


def test_a_failed_peer_is_skipped_until_its_cooldown_ends_or_is_cleared():
    now = [0.0]
    cooldown = Cooldown(clock=lambda: now[0])
    cooldown.add("10.0.0.1")
    assert "10.0.0.1" in cooldown and "10.0.0.2" not in cooldown
    now[0] = COOLDOWN_S
    assert "10.0.0.1" not in cooldown
    cooldown.add("10.0.0.1")
    cooldown.clear()
    assert "10.0.0.1" not in cooldown
