"""Which addresses may call, and which may be engines."""

import pytest
from aiohttp import web

from rl_agent.pool.api.auth import check_address, check_source, is_inside, is_local
from rl_agent.pool.settings import networks_of

LAN = networks_of("allowed_engine_networks", ("10.1.0.0/16", "fd00::/8"))


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.1.255.255", True),
        ("10.2.0.0", False),
        ("::ffff:10.1.2.3", True),
        ("fd00::1%eth0", True),
        ("fe80::1%eth0", False),
        ("a.name", False),
        ("", False),
        (None, False),
    ],
)
def test_an_address_is_inside_a_network_however_it_is_written(address, found):
    assert is_inside(address, LAN) is found


@pytest.mark.parametrize(
    ("address", "found"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.1.0.1", False)]
)
def test_loopback_is_local(address, found):
    assert is_local(address) is found


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("10.9.0.1", "10.9.0.1"),
        ("10.9.0.1", "::ffff:10.9.0.1"),
        ("10.1.0.7", "10.9.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "::1"),
    ],
)
def test_an_engine_registers_itself_or_one_of_an_allowed_network(host, peer):
    check_address(host, peer, LAN)


@pytest.mark.parametrize(
    ("host", "peer", "status"),
    [
        ("10.9.0.2", "10.9.0.1", 403),
        ("127.0.0.1", "10.9.0.1", 403),  # the manager's own loopback
        ("169.254.169.254", "169.254.169.254", 403),  # the metadata of a cloud's machine
        ("0.0.0.0", "0.0.0.0", 403),
        ("224.0.0.1", "224.0.0.1", 403),
        ("engine.example", "10.9.0.1", 422),
    ],
)
def test_any_other_address_is_refused(host, peer, status):
    with pytest.raises(web.HTTPException) as refused:
        check_address(host, peer, LAN)
    assert refused.value.status == status


def test_weight_sources_are_hosts_and_never_link_local_addresses():
    check_source("10.9.0.1")
    check_source("trainer.example")
    with pytest.raises(web.HTTPException):
        check_source("169.254.169.254")
