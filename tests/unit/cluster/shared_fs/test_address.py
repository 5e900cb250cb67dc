"""A node tells the others its address, and the port beside it."""

import socket
from dataclasses import dataclass

import pytest

from rl_agent.cluster.shared_fs import address
from rl_agent.cluster.shared_fs.address import advertised_address, free_port, interface_name
from rl_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Cluster:
    interface: str | None


LOOPBACK_INTERFACE = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def test_an_interface_stands_for_its_ipv4_address():
    cluster = Cluster(LOOPBACK_INTERFACE)
    assert advertised_address(cluster) == "127.0.0.1"
    assert interface_name(cluster) == LOOPBACK_INTERFACE


@pytest.mark.parametrize("given", ["10.1.2.3", "fd00::1", "localhost"])
def test_an_address_or_a_host_name_is_used_as_it_is(given):
    assert advertised_address(Cluster(given)) == given
    assert interface_name(Cluster(given)) is None


def test_without_a_setting_the_route_to_the_outside_decides(monkeypatch):
    monkeypatch.setattr(address, "_address_on_default_route", lambda: "10.0.0.7")
    assert advertised_address(Cluster(None)) == "10.0.0.7"
    assert interface_name(Cluster(None)) is None


@pytest.mark.parametrize(("own_name", "expected"), [("172.16.0.5", "172.16.0.5"), ("127.0.1.1", "127.0.0.1")])
def test_without_a_route_the_hosts_own_name_decides(monkeypatch, own_name, expected):
    monkeypatch.setattr(address, "_address_on_default_route", lambda: None)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: own_name)
    assert advertised_address(Cluster(None)) == expected


def test_the_route_to_the_outside_names_an_address_of_this_host():
    route = address._address_on_default_route()
    if route is None:
        pytest.skip("this machine has no route to the outside")
    with socket.socket() as probe:
        probe.bind((route, 0))  # only an address of this host can be bound


def test_a_name_of_nothing_says_which_interfaces_there_are(monkeypatch):
    def unknown(name, port):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match=rf"cluster\.interface=ib99: is neither .*{LOOPBACK_INTERFACE}"):
        advertised_address(Cluster("ib99"))


def test_a_free_port_can_be_listened_on():
    with socket.socket() as listener:
        listener.bind(("", free_port()))
        listener.listen()
