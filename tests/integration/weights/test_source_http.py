"""Weights over HTTP, the fallback: what it gives, and to whom."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.download.receive import Announcement
from rl_agent.weights.sources.source_http import HttpSource
from rl_agent.weights.store.store import FULL
from tests.support.weight_links import Link, ends_at
from tests.support.weight_transfers import announced, hold, receive, source_at


def bearer(token):
    return lambda: {"Authorization": f"Bearer {token}"}


def test_http_serves_as_a_fallback_for_what_the_sources_cannot_give(newest, sender, receiver, http_address):
    fallback = HttpSource(http_address, bearer("token"), 5.0)
    with Link(sender.server.address, ends_at(newest.manifest.full.size_bytes // 2)) as link:
        snapshot, report = receive(
            receiver, announced(newest), [source_at(link.address)], fallbacks=[fallback]
        )
    assert snapshot.map(FULL) == newest.map(FULL)
    assert 0 < report.by_source[http_address].pieces < len(newest.manifest.full.digests)
    assert report.fetched_bytes == newest.manifest.full.size_bytes


def test_a_delta_can_come_over_http_alone(sender, receiver, http_address):
    source = HttpSource(http_address, bearer("token"), 5.0)
    receive(receiver, announced(hold(sender, 2)), [source])
    snapshot, report = receive(receiver, announced(hold(sender, 3)), [source])
    assert report.deltas == 1
    assert snapshot.map(FULL) == hold(sender, 3).map(FULL)


def test_http_gives_nothing_without_the_token(sender, receiver, http_address):
    with pytest.raises(WeightsError, match="401"):
        receive(receiver, announced(sender.store.newest), [HttpSource(http_address, bearer("wrong"), 5.0)])


def test_only_web_addresses_are_opened(receiver):
    with pytest.raises(WeightsError, match="not an http address"):
        receive(receiver, Announcement(1, "0" * 64), [HttpSource("file:///etc", bearer("token"), 5.0)])


def test_a_token_does_not_follow_a_redirect_to_another_host():
    seen = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers)
            self.send_error(404)

        def log_message(self, *_):
            pass

    class Redirecting(Elsewhere):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{elsewhere.server_port}/")
            self.end_headers()

    with serving_http(Elsewhere) as elsewhere, serving_http(Redirecting) as redirecting:
        source = HttpSource(f"http://127.0.0.1:{redirecting.server_port}", bearer("token"), 5.0)
        connection = source.connection()
        connection.open(Deadline.after(10))
        with pytest.raises(WeightsError, match="302"):
            connection.manifest(1, None, Deadline.after(10))
    assert not seen


@pytest.mark.parametrize("length", ["many", "-1", str(2**40)])
def test_an_http_server_that_says_no_proper_length_is_a_source_that_fails(receiver, length):
    class Odd(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", length)
            self.end_headers()

        def log_message(self, *_):
            pass

    with serving_http(Odd) as server:
        source = HttpSource(f"http://127.0.0.1:{server.server_port}", bearer("token"), 5.0)
        with pytest.raises(WeightsError, match="length"):
            receive(receiver, Announcement(1, "0" * 64), [source])


@contextlib.contextmanager
def serving_http(handler):
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
