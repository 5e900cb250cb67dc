"""Hosts that a browser may reach."""

import pytest

from rl_agent.env.web.hosts import check_hosts, is_allowed, ways

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
def test_malformed_hosts_are_refused_by_name(host):
    with pytest.raises(ValueError, match="is not a host"):
        check_hosts((host,))


def test_without_allowed_hosts_the_browser_reaches_the_sites_alone():
    assert ways(SITES, None) == ("--host-resolver-rules=MAP shop.test 127.0.0.1:4000, MAP * ~NOTFOUND",)


def test_all_but_the_sites_passes_the_gate_and_loopback_is_no_exception():
    _, proxy, direct = ways(SITES, 9)
    assert proxy == "--proxy-server=socks5://127.0.0.1:9"
    assert direct == "--proxy-bypass-list=<-loopback>;shop.test"
