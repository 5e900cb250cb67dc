"""The table of a pool's engines, on a wide terminal, a narrow one, and for a file."""

from rl_agent.cli.pool import table

ENGINE = {
    "name": "20261125T031540Z-8f4fc0d7/rank-0",
    "state": "ready",
    "is_doubted": False,
    "weight_version": 1,
    "weights_problem": "",
    "is_fetching_weights": False,
    "running": 255,
    "capacity": 256,
    "tokens_per_s": 204.0,
    "useful_tokens": 6084,
    "idle_s": 29.0,
    "up_s": 65.0,
    "lease_left_s": 5.0,
    "reason": "",
}
STATUS = {
    "model": "model",
    "weight_version": 1,
    "requests": dict.fromkeys(("submitted", "running", "open", "completed", "failed", "moves"), 0),
    "tokens": 0,
    "engine_deaths": 0,
    "cost": {"spent": 0.0, "on_demand": 0.0},
    "set_aside": {"count": 0},
    "runs": [],
    "engines": [ENGINE],
}


def engine_lines(width):
    return table(STATUS, width).splitlines()[-2:]


def test_a_file_gets_every_column():
    head, row = engine_lines(None)
    assert head.split("  ")[-1] == "reason" and "lease s" in head
    assert row.endswith("5.0")


def test_a_narrow_terminal_gets_the_columns_that_fit_and_names_in_full():
    head, row = engine_lines(80)
    assert len(row) <= 80
    assert row.startswith(ENGINE["name"]) and "255/256" in row
    assert "lease s" not in head and "tokens" not in head and "idle s" in head


def test_a_wide_terminal_loses_no_column():
    assert engine_lines(200) == engine_lines(None)
