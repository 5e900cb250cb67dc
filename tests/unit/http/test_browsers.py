"""A request that a foreign web page can make a browser send is refused, one of an ordinary client is not."""

import socket

import pytest
from aiohttp.test_utils import make_mocked_request

from rl_agent.http.browsers import refusal, served_names

NAMES = served_names("Bound.example", "Pool.example.org")
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
FOREIGN_PAGES = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://localhost:3000"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {**LINK, "Sec-Fetch-Dest": "iframe"},
    {**LINK, "Origin": "https://evil.example"},
]
FOREIGN_NAMES = [
    {"Host": "evil.example"},
    {"Host": "evil.example:5000", "Origin": "http://evil.example:5000", "Sec-Fetch-Site": "same-origin"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "localhost.evil.example"},
    {"Host": "127.0.0.1@evil.example"},
    {"Host": "[::1].evil.example"},
    {"Host": "a b"},
    {"Host": ""},
]
OURS = [
    {},
    {"Host": "127.0.0.1"},
    {"Host": "localhost:5000"},
    {"Host": "LOCALHOST."},
    {"Host": "pool.localhost"},
    {"Host": "[::1]:5000"},
    {"Host": "10.1.2.3:5000"},
    {"Host": socket.gethostname()},
    {"Host": "pool.example.org:5000"},
    {"Host": "bound.example"},
    {"Sec-Fetch-Site": "none"},
    {"Host": "localhost:5000", "Origin": "http://localhost:5000", "Sec-Fetch-Site": "same-origin"},
]


def reason_for(headers, names=NAMES, method="GET", **options):
    request = make_mocked_request(method, "/", headers={"Host": "127.0.0.1:5000", **headers})
    return refusal(request, names, "allowed_hosts names more", **options)


@pytest.mark.parametrize("headers", FOREIGN_PAGES)
def test_a_request_of_a_foreign_page_is_refused(headers):
    for names in (NAMES, None):
        for allows_links in (False, True):
            assert "from elsewhere" in reason_for(headers, names, allows_links=allows_links)


@pytest.mark.parametrize("headers", FOREIGN_NAMES)
def test_a_foreign_name_is_refused_unless_a_token_is_needed(headers):
    assert "allowed_hosts names more" in reason_for(headers, allows_links=True)
    assert reason_for(headers, names=None) is None


@pytest.mark.parametrize("headers", OURS)
def test_an_ordinary_client_is_answered(headers):
    assert reason_for(headers) is None is reason_for(headers, names=None)


def test_a_link_is_followed_where_the_service_allows_links():
    assert reason_for(LINK, allows_links=True) is None
    assert reason_for(LINK) and reason_for(LINK, method="POST", allows_links=True)
    assert reason_for({**LINK, "Host": "evil.example"}, allows_links=True)
