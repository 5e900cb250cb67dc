"""The shop of `data/sites`, without a browser."""

import pytest

from rl_agent.env.web.settings import OWN_SITES
from rl_agent.env.web.site import SiteRequest, load_site
from rl_agent.types import Task

Shop = load_site("shop", str(OWN_SITES / "shop"))


def visit(goal, seed=0):
    return Shop(Task("t", "p", "web", "easy", extra={"site": "shop", "goal": goal}), seed)


def post(path, **form):
    return SiteRequest("POST", path, form=form)


@pytest.mark.parametrize("goal", ["price", "cart", "order", "cheapest"])
def test_equal_seeds_ask_the_same_of_the_same_catalogue(goal):
    assert visit(goal, 3).goal == visit(goal, 3).goal
    assert visit(goal, 3).items == visit(goal, 3).items
    assert len({(visit(goal, seed).goal, *visit(goal, seed).items) for seed in range(20)}) == 20


@pytest.mark.parametrize("further", [0, 1])
def test_the_order_as_requested_is_paid_and_more_is_not(further):
    shop = visit("cart")
    others = [item.number for item in shop.items if item.number not in shop.wanted]
    for number, amount in [*shop.wanted.items(), *((number, 1) for number in others[:further])]:
        shop.respond(post(f"/add/{number}", amount=str(amount)))
    assert shop.reward(None) is None
    shop.respond(post("/confirm"))
    assert shop.reward(None) == 1.0 - further


def test_an_order_without_its_form_is_not_placed():
    shop = visit("order")
    (number,) = shop.wanted
    shop.respond(post(f"/add/{number}", amount="1"))
    assert "fill in" in shop.respond(post("/confirm", name="Ada Moss")).body
    assert shop.reward(None) is None
    shop.respond(post("/confirm", **shop.form))
    assert shop.reward(None) == 1.0


def test_an_answer_ends_the_visit():
    shop = visit("price")
    assert shop.reward(None) is None
    assert shop.reward(f"${shop.answer}") == 1.0
    assert visit("price").reward("free") == 0.0
    assert visit("cart").reward("done") == 0.0


@pytest.mark.parametrize(
    "request_",
    [
        SiteRequest("GET", "/no/such"),
        SiteRequest("GET", "/item/0"),
        SiteRequest("GET", "/item/99999999999"),
        SiteRequest("GET", "/item/²"),
        SiteRequest("GET", "/list/none"),
        SiteRequest("GET", "/list/home", {"page": "²"}),
        SiteRequest("GET", "/search", {"q": "<script>alert(1)</script>"}),
        SiteRequest("GET", "/search", {"q": "x" * 100_000, "page": "9" * 1000}),
        post("/add/1", amount="-1"),
        post("/add/1", amount="9" * 10_000),
        post("/add/1"),
        post("/remove/1"),
        post("/confirm"),
        SiteRequest("GET", "/confirm"),
    ],
)
def test_any_request_is_answered_and_no_text_becomes_a_script(request_):
    for goal in ("price", "order"):
        answer = visit(goal).respond(request_)
        assert answer.location or answer.body
        assert "<script" not in answer.body
