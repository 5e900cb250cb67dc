"""A deadline outlives a manager, and a clock on the wall that somebody sets."""

from rl_agent.pool.runtime.clocks import ClockOffsets


def test_deadline_uses_the_monotonic_clock_and_after_a_boot_the_wall_clock():
    stamp = ClockOffsets(epoch=-1000.0, boot=-50.0, boot_id="one").stamp(7.0)
    later = ClockOffsets(epoch=-2000.0, boot=-60.0, boot_id="one")
    assert later.deadline(stamp) == 57.0 - 60.0
    assert ClockOffsets(-2000.0, -60.0, "another").deadline(stamp) == 1007.0 - 2000.0
    assert ClockOffsets(-2000.0, -60.0, "").deadline((1007.0, "", 57.0)) == 1007.0 - 2000.0
