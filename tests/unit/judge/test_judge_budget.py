import pytest

from rl_agent.errors import ConfigError
from rl_agent.judge.judge_budget import REFRESH_S, JudgeBudget, spent_usd


def test_all_processes_spend_from_one_budget(tmp_path):
    now = [0.0]
    mine, other = (JudgeBudget(1.0, tmp_path, clock=lambda: now[0]) for _ in range(2))
    mine.check()
    mine.add(0.4)
    other.add(0.7)
    mine.check()  # the other's share is not read again yet
    now[0] = REFRESH_S

    with pytest.raises(ConfigError, match=r"budget_usd=1 is spent \(\$1\.1000\)"):
        mine.check()
    assert spent_usd(tmp_path) == pytest.approx(1.1)


def test_without_a_limit_nothing_is_written(tmp_path):
    budget = JudgeBudget(None, tmp_path / "spent")
    budget.add(5.0)
    budget.check()

    assert not (tmp_path / "spent").exists()


def test_a_torn_line_counts_as_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("0.5\n0.250.5\n0.25")

    assert spent_usd(tmp_path) == 0.5
