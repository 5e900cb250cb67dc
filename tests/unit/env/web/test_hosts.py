"""Which hosts a browser may reach."""

import pytest

from rl_agent.env.web.hosts import check_hosts, is_allowed, resolver_rules

SITES = {"shop.test": 4000}


@pytest.mark.parametrize(
    ("url", "allowed", "expected"),
    [
        ("http://shop.test/", (), True),
        ("http://shop.test:8000/", (), True),
        ("http://shop.test.evil.org/", (), False),
        ("http://user@evil.org/shop.test", (), False),
        ("https://example.org/a", ("example.org",), True),
        ("https://EXAMPLE.org./a", ("example.org",), True),
        ("https://www.example.org", ("example.org",), False),
        ("https://www.example.org", ("*.example.org",), True),
        ("https://notexample.org", ("*.example.org",), False),
        ("https://any.where", ("*",), True),
        ("http://localhost:8999/pause", ("*",), False),
        ("http://127.0.0.1/", ("*",), False),
        ("http://[::1]/", ("*",), False),
        ("http://169.254.169.254/latest", ("*",), False),
        ("http://172.20.1.1/", ("*",), False),
        ("file:///etc/passwd", ("*",), False),
        ("data:text/html,a", ("*",), False),
        ("javascript:1", ("*",), False),
        ("http://[", ("*",), False),
        ("", ("*",), False),
    ],
)
def test_an_address_is_allowed_by_its_scheme_and_its_host(url, allowed, expected):
    assert is_allowed(url, allowed, SITES) is expected


@pytest.mark.parametrize("host", ["", "a b", "http://a.b", "a.b/c", "a.*", "*.*", "**", "a,b", "a.b:80"])
def test_what_is_no_host_is_refused_by_name(host):
    with pytest.raises(ValueError, match="allowed_hosts"):
        check_hosts([host])


def test_the_resolver_knows_the_sites_and_the_allowed_hosts_and_nothing_else():
    rules = resolver_rules(("*.example.org",), SITES).split(", ")
    assert rules == ["MAP shop.test 127.0.0.1:4000", "MAP * ~NOTFOUND", "EXCLUDE *.example.org"]


def test_the_whole_web_does_not_include_this_machine_and_its_network():
    rules = resolver_rules(("*",), SITES)
    assert "MAP * ~NOTFOUND" not in rules
    assert "MAP 127.* ~NOTFOUND" in rules and "MAP localhost ~NOTFOUND" in rules
