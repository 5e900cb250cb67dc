"""Money and engine time between two steps, across restarts of the trainer and of the manager."""

import pytest

from rl_agent.trainer.grpo.step.meter import Meter, PoolTotals, StepReport
from rl_agent.trainer.grpo.step.step_metrics import IterationMetrics, log_line


class Now:
    def __init__(self) -> None:
        self.time = 1000.0
        self.pool: PoolTotals | None = PoolTotals()


def meter(now: Now, file=None, *, price: float = 36.0) -> Meter:
    return Meter(price_per_hour=price, file=file, totals=lambda: now.pool, clock=lambda: now.time)


def totals(seconds: float, *, engines: int = 2, price: float = 3.6) -> PoolTotals:
    """Totals of engines that have been up that long, and idle for a tenth of it."""
    up_s = engines * seconds
    return PoolTotals(engines, up_s, up_s / 10, int(seconds), 3 * int(seconds), up_s / 3600 * price, up_s / 5)


def test_a_step_costs_what_trainer_and_engines_cost_since_the_one_before():
    now = Now()
    read = meter(now)
    now.time, now.pool = 1100.0, totals(100)
    assert read.read(1e6) == pytest.approx(
        {
            "engines": 2,
            "engines_up_s": 200,
            "engines_idle_s": 20,
            "engines_idle_share": 0.1,
            "engines_draining_s": 40,
            "recomputed_tokens": 100,
            "prefilled_again_tokens": 300,
            "cost": 1.0 + 0.2,
            "cost_per_million_tokens": 1.2,
        }
    )
    now.time, now.pool = 1150.0, totals(150)
    second = read.read(2e6)
    assert second["cost"] == pytest.approx(0.5 + 0.1)
    assert second["cost_per_million_tokens"] == pytest.approx(0.3)
    assert second["recomputed_tokens"] == 50


def test_a_trainer_that_was_dead_is_paid_for_once(tmp_path):
    now, file = Now(), tmp_path / "meter.json"
    before = meter(now, file)
    now.time, now.pool = 1100.0, totals(100)
    first = before.read(1e6)["cost"]
    now.time, now.pool = 1200.0, totals(200)  # killed meanwhile
    after = meter(now, file)
    now.time, now.pool = 1300.0, totals(300)
    assert first + after.read(1e6)["cost"] == pytest.approx(3.0 + 0.6)


def test_a_manager_that_counts_from_nothing_again_is_counted_from_nothing():
    now = Now()
    read = meter(now)
    now.pool = totals(100)
    read.read(1.0)
    now.pool = totals(30)
    assert read.read(1.0)["engines_up_s"] == 60


def test_without_a_pool_and_without_prices_nothing_is_claimed():
    now = Now()
    now.pool = None
    assert meter(now, price=0.0).read(1e6) == {}
    assert meter(now).read(1e6).keys() == {"cost", "cost_per_million_tokens"}
    now.pool = totals(10, price=0.0)
    assert "cost" not in meter(now, price=0.0).read(1e6)


STEP = {
    "reward": 0.5, "entropy": 1.25, "total_tokens": 1000, "computed_tokens": 1000, "seconds/step": 10.0,
    "seconds/waiting": 4.0, "seconds/gradient": 5.0, "seconds/update": 1.0, "tokens_per_s": 100.0,
    "tokens_per_s_per_device": 50.0, "staleness/0": 6, "staleness/1": 2, "loss": 0.1, "grad_norm": 1.0,
    "learning_rate": 1e-6, "episodes": 8,
}  # fmt: skip


def test_a_step_is_one_line_of_the_log_that_leaves_out_what_is_not_known():
    plain = log_line(3, STEP)
    assert plain == (
        "step 3: reward 0.500, entropy 1.250, "
        "1,000 tokens in 10.0 s (waiting 4.0, gradient 5.0, update 1.0), "
        "100 tokens/s (50 per device), staleness: 6 episodes at 0 versions, 2 episodes at 1 versions"
    )
    shared = plain.replace("1,000 tokens in", "1,000 tokens (400 computed) in")
    assert log_line(3, STEP | {"computed_tokens": 400}) == shared
    more = {"mfu": 0.391, "engines": 3, "engines_idle_share": 0.25, "recomputed_tokens": 12}
    assert log_line(3, STEP | more | {"cost": 0.5, "cost_per_million_tokens": 2.0}) == (
        plain.replace("per device)", "per device), MFU 39.1%")
        + ", 3 engines (idle 25%), 12 tokens recomputed, $0.5000 ($2.00 per million tokens)"
    )


def test_an_iteration_adds_up_what_its_steps_know():
    iteration = IterationMetrics()
    assert iteration.numbers() == {"steps": 0.0}
    iteration.add(STEP | {"mfu": 0.2, "cost": 1.0, "flops": 5.0})
    iteration.add(STEP | {"mfu": 0.5, "cost": 2.0, "flops": 7.0, "seconds/waiting": 7.0})
    numbers = iteration.numbers()
    assert numbers["waiting_share"] == pytest.approx(11 / 20)
    assert numbers["mfu"] == pytest.approx((0.2 * 6 + 0.5 * 3) / 9)  # weighted by the seconds at work
    assert (numbers["cost"], numbers["flops"], numbers["tokens"]) == (3.0, 12.0, 2000)
    assert numbers["cost_per_million_tokens"] == pytest.approx(1500)
    assert "recomputed_tokens" not in numbers


def test_an_iteration_that_went_on_after_a_stop_adds_up_all_its_steps():
    def record(step, iteration=2, **more):
        line = {f"trainer/{name}": value for name, value in STEP.items()}
        every = {"update_step/loss": 1.0, "update_step/grad_norm": 1.0, "update_step/learning_rate": 0.1}
        return {"time": 1.0, "iteration": iteration, "update_step": step} | line | every | more

    records = [
        record(4, iteration=1),
        record(5),
        record(6),  # made again, for the checkpoint was older
        record(6, **{"update_step/loss": 3.0}),
        record(7),  # not in the checkpoint: it will be made again
        {"time": 1.0, "iteration": 2, "test/success_rate": 0.5},
    ]
    iteration = IterationMetrics()

    iteration.recall(records, iteration=2, last=6)

    numbers = iteration.numbers()
    assert (numbers["steps"], numbers["loss"], numbers["tokens"]) == (2.0, 2.0, 2 * STEP["total_tokens"])


def test_a_step_is_reported_before_the_pool_answers_its_wanted_engines():
    order = []

    def answer() -> PoolTotals:
        order.append("the pool answered")
        return PoolTotals(2, wanted=3, wanted_reason="3 wanted: the trainer waited 41 s of 60")

    step = StepReport(41.0, 60.0, steps_together=1, is_last=False)
    read = Meter(0.0, totals=answer, report=order.append)
    assert read.read(1.0, step)["engines_wanted"] == 3
    assert order == [step, "the pool answered"]
    assert read.wanted_reason == "3 wanted: the trainer waited 41 s of 60"


def test_a_pool_that_asks_for_no_engines_says_nothing_of_it():
    status = {"engines": [], "totals": dict.fromkeys(PoolTotals._sums(), 0)}
    for wanted in ({}, {"wanted": {"counts": {}, "reason": ""}}):
        assert PoolTotals.of(status | wanted) == PoolTotals()
    requested = {"wanted": {"counts": {"spot": 2, "fast": 1}, "reason": "3 wanted: …"}}
    assert PoolTotals.of(status | requested) == PoolTotals(wanted=3, wanted_reason="3 wanted: …")
