"""Names by which requests are known outside the scheduler."""

from rl_agent.pool.scheduler.records import Order, RequestId


def test_different_requests_have_different_names_at_engines_and_in_logs():
    parts = ("a", "a/b", "b", "a%2Fb", "0", "a/0")
    requests = [RequestId(run, name, serial) for run in parts for name in parts for serial in (0, 1)]
    assert len(set(map(str, requests))) == len(requests)
    assert str(RequestId("run", "iteration 1/r0")) == "run/iteration%201%2Fr0/0"


def test_an_order_belongs_to_the_run_of_its_id():
    assert Order(RequestId("mine", "r"), (1,), 10, {}, 1e9).run == "mine"
