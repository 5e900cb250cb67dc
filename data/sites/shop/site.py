"""A small shop, drawn from a seed: search, categories, items, a cart and an order form.

A task names what is asked as `goal`:

    price    tell the price of an item, which the search finds
    cart     put some of two items into the cart
    order    order an item, with the name and the town of the buyer and a way of delivery
    cheapest put the cheapest item of a category into the cart

The page at the end says that it is over for `cart` and `cheapest` when the cart is confirmed.
"""

import html
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from rl_agent.env.web.site import SiteRequest, SiteResponse
from rl_agent.types import Task

GOALS = ("price", "cart", "order", "cheapest")
_COLOURS = ("red", "blue", "green", "black", "white", "yellow")
_MATERIALS = ("oak", "steel", "glass", "wool", "clay")
_THINGS = {
    "kitchen": ("bowl", "kettle", "pan", "cup"),
    "home": ("lamp", "chair", "clock", "blanket"),
    "garden": ("bench", "bucket", "lantern", "pot"),
}
_NAMES = ("Ada Moss", "Ben Hill", "Cleo Ray", "Dan Frost", "Eve Stone", "Finn Lake")
_TOWNS = ("Lund", "Turin", "Porto", "Ghent", "Graz", "Cork")
_DELIVERIES = ("post", "courier", "pick-up")
_PER_CATEGORY = 10
_PER_PAGE = 5
_MAX_AMOUNT = 9
_STYLE = """
body { font: 18px Arial, sans-serif; margin: 0 16px; color: #222; caret-color: transparent; }
nav { display: flex; gap: 18px; align-items: center; padding: 10px 0; border-bottom: 2px solid #347; }
input, select, button { font: inherit; padding: 4px 8px; } input[name=q] { width: 160px; }
a { color: #136; } li { margin: 10px 0; } button { background: #347; color: white; border: 0; }
td { padding: 4px 18px 4px 0; } p { margin: 12px 0; }
"""


@dataclass(frozen=True, slots=True)
class Item:
    """Something for sale."""

    number: int
    name: str
    category: str
    price: int

    @property
    def path(self) -> str:
        return f"/item/{self.number}"


def catalogue(random_: random.Random) -> list[Item]:
    """Return the items: all names differ, and so do the prices inside a category."""
    items: list[Item] = []
    for category, things in _THINGS.items():
        names = [f"{colour} {of} {thing}" for colour in _COLOURS for of in _MATERIALS for thing in things]
        prices = random_.sample(range(3, 99), _PER_CATEGORY)
        for name, price in zip(random_.sample(names, _PER_CATEGORY), prices, strict=True):
            items.append(Item(len(items) + 1, name, category, price))
    return items


class Site:
    """One visit to the shop."""

    start = "/"

    def __init__(self, task: Task, seed: int) -> None:
        random_ = random.Random(f"shop/{seed}")
        self.items = catalogue(random_)
        self.kind = task.extra["goal"]
        self.cart: dict[int, int] = {}
        self.ordered: Mapping[str, Any] | None = None
        self.answer = ""
        self.wanted: dict[int, int] = {}
        self.form: dict[str, str] = {}
        self.goal = getattr(self, f"_ask_{self.kind}")(random_)

    @staticmethod
    def check_task(task: Task) -> None:
        """Raises ValueError for a goal that is none."""
        if task.extra.get("goal") not in GOALS:
            raise ValueError(f"goal is {task.extra.get('goal')!r}; use one of {', '.join(GOALS)}")

    def reward(self, answer: str | None) -> float | None:
        """Pay 1 for what was asked and nothing else."""
        if self.kind == "price":
            return None if answer is None else float(answer.strip().strip("$.") == self.answer)
        if self.ordered is None:
            return None if answer is None else 0.0
        return float(self.ordered == {"cart": self.wanted, **self.form})

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Answer with the page of a path."""
        area, _, rest = request.path.strip("/").partition("/")
        page: Callable[[SiteRequest, str], SiteResponse] = {
            "": self._home,
            "list": self._list,
            "search": self._search,
            "item": self._item,
            "add": self._add,
            "remove": self._remove,
            "cart": self._cart,
            "checkout": self._checkout,
            "confirm": self._confirm,
        }.get(area, self._missing)
        return page(request, rest)

    def _ask_price(self, random_: random.Random) -> str:
        item = random_.choice(self.items)
        self.answer = str(item.price)
        return f"How many dollars is the {item.name}? Answer with the number."

    def _ask_cart(self, random_: random.Random) -> str:
        first, second = random_.sample(self.items, 2)
        self.wanted = {first.number: random_.randint(1, 3), second.number: random_.randint(1, 3)}
        return (
            f"Put {self.wanted[first.number]} of the {first.name} and {self.wanted[second.number]} of the"
            f" {second.name} into the cart and confirm it."
        )

    def _ask_order(self, random_: random.Random) -> str:
        item = random_.choice(self.items)
        self.wanted = {item.number: 1}
        name, town, delivery = random_.choice(_NAMES), random_.choice(_TOWNS), random_.choice(_DELIVERIES)
        self.form = {"name": name, "town": town, "delivery": delivery}
        return f"Order one {item.name} for {name} in {town}, delivery by {delivery}."

    def _ask_cheapest(self, random_: random.Random) -> str:
        category = random_.choice(list(_THINGS))
        item = min((item for item in self.items if item.category == category), key=lambda item: item.price)
        self.wanted = {item.number: 1}
        return f"Put one of the cheapest item of {category} into the cart and confirm it."

    def _home(self, _request: SiteRequest, _rest: str) -> SiteResponse:
        links = "".join(f'<li><a id="to-{name}" href="/list/{name}">{name}</a></li>' for name in _THINGS)
        return _page("Shop", f"<h2>Our shop</h2><p>Choose a part of it, or search above.</p><ul>{links}</ul>")

    def _list(self, request: SiteRequest, category: str) -> SiteResponse:
        matches = [item for item in self.items if item.category == category]
        return (
            self._found(matches, category, f"/list/{category}", request)
            if matches
            else self._missing(request, "")
        )

    def _search(self, request: SiteRequest, _rest: str) -> SiteResponse:
        query = request.query.get("q", "")[:80].lower()
        words = query.split()
        matches = [item for item in self.items if words and all(word in item.name for word in words)]
        return self._found(matches, f"Search: {query}", "/search", request, {"q": query})

    def _found(
        self,
        matches: list[Item],
        title: str,
        path: str,
        request: SiteRequest,
        query: Mapping[str, str] | None = None,
    ) -> SiteResponse:
        number = request.query.get("page", "1")
        page = int(number) if number.isdecimal() and len(number) < 4 else 1
        shown = matches[(page - 1) * _PER_PAGE : page * _PER_PAGE]
        rows = "".join(
            f'<li><a class="item" href="{item.path}">{item.name}</a>, ${item.price}</li>' for item in shown
        )
        more = ""
        if page * _PER_PAGE < len(matches):
            after = html.escape(urlencode({**(query or {}), "page": str(page + 1)}))
            more = f'<p><a id="more" href="{path}?{after}">more</a></p>'
        return _page(
            "List", f"<h2>{html.escape(title)}</h2><ul>{rows or '<li>Nothing matches.</li>'}</ul>{more}"
        )

    def _item(self, request: SiteRequest, rest: str) -> SiteResponse:
        item = self._item_of(rest)
        if item is None:
            return self._missing(request, rest)
        return _page(
            "Item",
            f"<h2>{item.name}</h2><p>Of {item.category}. Price: ${item.price}</p>"
            f'<form method="post" action="/add/{item.number}">Amount: '
            '<input id="amount" name="amount" value="1" size="2">'
            ' <button id="add">Add to cart</button></form>',
        )

    def _add(self, request: SiteRequest, rest: str) -> SiteResponse:
        item = self._item_of(rest)
        amount = request.form.get("amount", "")
        if (
            item is None
            or request.method != "POST"
            or not (amount.isdecimal() and 0 < int(amount[:4]) <= _MAX_AMOUNT)
        ):
            return _page("Cart", f"<p>The amount is a number from 1 to {_MAX_AMOUNT}.</p>")
        self.cart[item.number] = min(self.cart.get(item.number, 0) + int(amount), _MAX_AMOUNT)
        return SiteResponse(location="/cart")

    def _remove(self, request: SiteRequest, rest: str) -> SiteResponse:
        item = self._item_of(rest)
        if item is not None and request.method == "POST":
            self.cart.pop(item.number, None)
        return SiteResponse(location="/cart")

    def _cart(self, _request: SiteRequest, _rest: str) -> SiteResponse:
        if not self.cart:
            return _page("Cart", "<h2>Cart</h2><p>The cart is empty.</p>")
        items = [(self.items[number - 1], amount) for number, amount in self.cart.items()]
        rows = "".join(
            f"<tr><td>{amount}</td><td>{item.name}</td><td>${item.price * amount}</td>"
            f'<td><form method="post" action="/remove/{item.number}"><button>Remove</button></form></td></tr>'
            for item, amount in items
        )
        next_ = (
            '<p><a id="checkout" href="/checkout">Check out</a></p>'
            if self.kind == "order"
            else '<form method="post" action="/confirm"><button id="confirm">Confirm cart</button></form>'
        )
        return _page("Cart", f"<h2>Cart</h2><table>{rows}</table>{next_}")

    def _checkout(self, _request: SiteRequest, _rest: str) -> SiteResponse:
        choices = "".join(
            f'<label><input type="radio" name="delivery" value="{name}" id="by-{name}"> {name}</label> '
            for name in _DELIVERIES
        )
        return _page(
            "Order",
            '<h2>Order</h2><form method="post" action="/confirm">'
            '<p>Name: <input id="name" name="name" autocomplete="off"></p>'
            '<p>Town: <input id="town" name="town" autocomplete="off"></p>'
            f'<p>Delivery: {choices}</p><button id="order">Place order</button></form>',
        )

    def _confirm(self, request: SiteRequest, _rest: str) -> SiteResponse:
        if request.method != "POST" or not self.cart:
            return SiteResponse(location="/cart")
        given = {field: request.form.get(field, "").strip() for field in self.form}
        if not all(given.values()):
            return _page("Order", '<p>Please fill in everything.</p><p><a href="/checkout">Go back</a></p>')
        if self.ordered is None:
            self.ordered = {"cart": dict(self.cart), **given}
        return _page("Thanks", "<h2>Thank you</h2><p>That was all.</p>")

    def _missing(self, _request: SiteRequest, _rest: str) -> SiteResponse:
        page = _page("Missing", "<h2>There is no such page</h2>")
        return SiteResponse(page.body, status=404)

    def _item_of(self, number: str) -> Item | None:
        is_known = number.isdecimal() and len(number) < 4 and 1 <= int(number) <= len(self.items)
        return self.items[int(number) - 1] if is_known else None


def _page(title: str, body: str) -> SiteResponse:
    links = '<a id="home" href="/">Home</a> <a id="cart" href="/cart">Cart</a>'
    field = '<input name="q" autocomplete="off"> <button id="search">Search</button>'
    search = f'<form action="/search">{field}</form>'
    return SiteResponse(
        f"<!doctype html><title>{title}</title><style>{_STYLE}</style><nav>{links}{search}</nav>{body}"
    )
