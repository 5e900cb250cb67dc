"""The proxy connects a browser to addresses of the public web, and to hosts that are allowed by name."""

import asyncio
import socket
from contextlib import asynccontextmanager

import psutil
import pytest

from rl_agent.env.web.socks_proxy import SocksProxy, is_public

PRIVATE = [
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.20.0.1", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0",
    "fd00::1", "ff02::1", "::ffff:127.0.0.1",
    "64:ff9b::7f00:1", "2002:7f00:1::", "::ffff:100.64.0.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_of_this_machine_or_a_private_network_is_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "::ffff:93.184.216.34"])
def test_an_address_of_the_web_is_public(address):
    assert is_public(address)


def test_an_address_of_a_card_of_this_machine_is_not_public(monkeypatch):
    card = psutil._ntuples.snicaddr(socket.AF_INET, "93.184.216.34", None, None, None)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [card]})
    assert not is_public("93.184.216.34") and is_public("93.184.216.35")


@asynccontextmanager
async def asking(allowed, addresses):
    """Give a function that asks the proxy for a host, and sends a word to what answers."""

    async def echo(reader, writer):
        writer.write(await reader.read(100))
        writer.close()

    async def resolve(host, port):
        if host not in addresses:
            raise socket.gaierror(host)
        return addresses[host]

    proxy = SocksProxy(allowed, resolve)
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as victim:
        port, here = victim.sockets[0].getsockname()[1], await proxy.start()

        async def ask(host):
            reader, writer = await asyncio.open_connection("127.0.0.1", here)
            name = host.encode()
            writer.write(b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2))
            assert await reader.readexactly(2) == b"\x05\x00"
            status = (await reader.readexactly(10))[1]
            if status == 0:
                writer.write(b"hello")
                writer.write_eof()
            answer = await reader.read()
            writer.close()
            return status, answer

        yield ask
    proxy.close()


@pytest.mark.parametrize("host", ["rebound.example", "localhost.", "machine", "127.0.0.1", "mixed.example"])
async def test_the_whole_web_does_not_include_a_name_that_leads_to_this_machine(host):
    here = {name: ["127.0.0.1"] for name in ("rebound.example", "localhost", "machine", "127.0.0.1")}
    async with asking(["*"], here | {"mixed.example": ["::1", "127.0.0.1"]}) as ask:
        assert await ask(host) == (2, b"")


async def test_a_host_allowed_by_its_whole_name_is_connected_and_no_other():
    here = {"own.example": ["127.0.0.1"], "a.wild.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]}
    async with asking(["own.example", "*.wild.example", "gone.example"], here) as ask:
        assert await ask("own.example") == (0, b"hello")
        assert await ask("OWN.example.") == (0, b"hello")
        assert await ask("a.wild.example") == (2, b"")
        assert await ask("other.example") == (2, b"")
        assert await ask("gone.example") == (4, b"")
