"""Serves weights to receivers that know the token. It only answers; it never connects to anyone.

    {"op": "manifest", "version": 7}                               -> the manifest, in a frame of its own
    {"op": "recommend", "version": 7, "blob": "full", "wanted": bits, "limit": 4, "wait_s": 1}
                                                                   -> {"indices": [...]}
    {"op": "piece", "version": 7, "blob": "full", "index": 3}      -> {"size_bytes": n}, then n raw bytes
    {"op": "place", "version": 7, "blob": "full"}                  -> {"session": where, "address": n}
    {"op": "pair", "kind": "nccl 2.28.9"}                           -> {"invitation": text}, then it joins
    {"op": "piece", …, "by": "pair"}                               -> {"size_bytes": n}, then n by the pair
    anything that cannot be had                                    -> {"error": why}

It may listen at several addresses (`connections`), with one catalog, one cap and one limit for all. Every
operation on a socket has a deadline; a receiver that takes no bytes is dropped.
"""

import os
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Protocol, assert_never

from rl_agent.config.sections.weights import BYTES_PER_GBIT, WeightsConfig
from rl_agent.errors import WeightsError
from rl_agent.weights.connection import messages
from rl_agent.weights.connection.channel import Channel
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.connection.throttle import Throttle
from rl_agent.weights.format.manifest import dump_manifest
from rl_agent.weights.format.pieces import text_to_bits
from rl_agent.weights.pairs.pairs import JOIN_S, MOVE_S, SENDER, Pair, PairMaker, WaitLimit
from rl_agent.weights.server.connections import Listener
from rl_agent.weights.sources.source_tcp import RemoteMemory
from rl_agent.weights.store.catalog import Catalog, Offer

IDLE_TIMEOUT_S = 60.0
"""A connection that takes nothing for this long is closed: a receiver that lives asks more often."""
_THROTTLED_BYTES = 2**18
_MAX_WAIT_S = 5.0
_MAX_LIMIT = 64
_MOST_PAIRS = 16
"""The most pairs at once: each takes memory of the device, and other receivers are served over their
connections."""

_Rest = Callable[[Channel, Deadline], None]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    hosts: tuple[str, ...]
    port: int
    """The port at each address; 0: a free one."""
    max_connections: int
    """The most connections of receivers that have shown the token."""
    idle_timeout_s: float
    """Longest time in which a receiver takes no bytes, or asks for nothing."""
    piece_timeout_s: float
    bytes_per_s: float | None
    """Cap on what leaves this host; None: no cap."""

    @classmethod
    def of(cls, weights: WeightsConfig, hosts: tuple[str, ...], port: int) -> "ServerSettings":
        """Convert what the configuration says of servers; `hosts` are the addresses to listen at."""
        cap = weights.cap_gbit_per_s
        return cls(
            hosts,
            port,
            weights.max_connections,
            idle_timeout_s=IDLE_TIMEOUT_S,
            piece_timeout_s=weights.piece_timeout_s,
            bytes_per_s=None if cap is None else BYTES_PER_GBIT * cap,
        )


@dataclass(frozen=True, slots=True)
class SentBytes:
    """Bytes of pieces that a server has sent, by how; what a transfer engine reads itself is not counted."""

    tcp: int = 0
    in_host: int = 0
    """The bytes sent over connections to receivers of the same host."""
    paired: int = 0
    """The bytes sent by a pair, such as NCCL's."""

    def since(self, before: "SentBytes") -> "SentBytes":
        """Return what was sent since then."""
        return SentBytes(self.tcp - before.tcp, self.in_host - before.in_host, self.paired - before.paired)


class Memory(Protocol):
    def place(self, weight_version: int, blob: str, descriptor: int, here: Collection[int]) -> RemoteMemory:
        """Return where a transfer engine finds a blob; what belongs to versions not `here` may go."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _ReceiverSession:
    """One receiver's connection."""

    channel: Channel
    closing: ExitStack
    is_invited: bool = False
    pair: Pair | None = None


class WeightServer:
    """A weight server, running from entry to exit of its block; no thread of it is left after."""

    def __init__(
        self,
        catalog: Catalog,
        token: bytes | None,
        settings: ServerSettings,
        *,
        memory: Memory | None = None,
        pairs: PairMaker | None = None,
    ) -> None:
        """`token`: None until `change_token`, so that the address is known before there is a version.

        `memory`: lets a transfer engine read what is complete here. `pairs`: sends over them if asked.
        """
        if token == b"":
            raise WeightsError("a weight server needs a token")
        self._catalog = catalog
        self._memory = memory
        self._pairs = pairs
        self._paired = threading.BoundedSemaphore(_MOST_PAIRS)
        self._settings = settings
        self._throttle = Throttle(settings.bytes_per_s)
        self._lock = threading.Lock()
        self._sent = SentBytes()
        self._listener = Listener(
            settings.hosts,
            settings.port,
            most=settings.max_connections,
            token=token,
            idle_s=settings.idle_timeout_s,
            serve=self._serve,
        )
        self._stopping = self._listener.stopping

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return self._listener.addresses

    def change_token(self, token: bytes) -> None:
        """Serve only receivers that know this one from now on."""
        self._listener.change_token(token)

    @property
    def address(self) -> tuple[str, int]:
        """Return the first of the addresses."""
        return self.addresses[0]

    @property
    def sources(self) -> list[str]:
        """Return the addresses as they are announced."""
        return [
            f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
            for host, port in self.addresses
        ]

    @property
    def connections(self) -> int:
        """Return how many receivers are connected."""
        return self._listener.connections

    @property
    def sent_bytes(self) -> int:
        """Return the bytes of pieces that were sent so far, over connections and pairs."""
        sent = self.sent
        return sent.tcp + sent.in_host + sent.paired

    @property
    def sent(self) -> SentBytes:
        """Return the same, by how."""
        return self._sent

    def __enter__(self) -> "WeightServer":
        self._listener.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.__exit__(kind, error, trace)
        if self._memory is not None:
            self._memory.close()

    def _serve(self, channel: Channel, host: str, closing: ExitStack) -> None:
        receiver = _ReceiverSession(channel, closing)
        while not self._stopping.is_set():
            self._answer(receiver)

    def _answer(self, receiver: _ReceiverSession) -> None:
        channel = receiver.channel
        content = channel.receive(Deadline.after(self._settings.idle_timeout_s))
        deadline = Deadline.after(self._settings.piece_timeout_s)
        with ExitStack() as held:
            try:
                answer, rest = self._prepare(messages.parse_question(content), receiver, held)
            except WeightsError as error:
                answer, rest = messages.ServerAnswer(error=str(error)), None
            channel.send(messages.dump(answer), deadline)
            if rest is not None:
                rest(channel, deadline)

    def _prepare(
        self, question: messages.Question, receiver: _ReceiverSession, held: ExitStack
    ) -> tuple[messages.ServerAnswer, _Rest | None]:
        """Return the answer to a question, and what follows it. Raises WeightsError if it cannot be had."""
        match question:
            case messages.ManifestQuestion(weight_version):
                text = dump_manifest(self._catalog.manifest(weight_version))
                return messages.ServerAnswer(), lambda channel, deadline: channel.send(text, deadline)
            case messages.RecommendQuestion(weight_version, blob, wanted, limit, wait_s):
                with self._catalog.open(weight_version, blob) as offer:
                    bits = text_to_bits(wanted, offer.pieces.count)
                indices = offer.pieces.recommend(bits, min(limit, _MAX_LIMIT), min(wait_s, _MAX_WAIT_S))
                return messages.ServerAnswer(indices=tuple(indices)), None
            case messages.PieceQuestion(weight_version, blob, index, by):
                offer = held.enter_context(self._catalog.open(weight_version, blob))
                if index not in offer.pieces:
                    raise WeightsError(f"has no verified piece {index} of version {weight_version}")
                start, end = offer.blob.range_of(index)
                if by == "pair":
                    return messages.ServerAnswer(size_bytes=end - start), self._staged(
                        receiver, offer, start, end
                    )
                return messages.ServerAnswer(size_bytes=end - start), partial(self._send, offer, start, end)
            case messages.PlaceQuestion(weight_version, blob):
                place = self._place(weight_version, blob)
                return messages.ServerAnswer(session=place.session, address=place.address), None
            case messages.PairQuestion(kind):
                pairs, invitation = self._invite(receiver, kind)
                return messages.ServerAnswer(invitation=invitation), partial(
                    self._join, receiver, pairs, invitation
                )
        assert_never(question)

    def _invite(self, receiver: _ReceiverSession, kind: str) -> tuple[PairMaker, str]:
        if self._pairs is None or self._pairs.kind != kind:
            own = "none" if self._pairs is None else self._pairs.kind
            raise WeightsError(f"makes pairs of kind {own}, not {kind}")
        if receiver.is_invited or not self._paired.acquire(blocking=False):
            raise WeightsError("makes no further pairs now")
        receiver.is_invited = True
        receiver.closing.callback(self._paired.release)
        return self._pairs, self._pairs.invite()

    def _join(
        self,
        receiver: _ReceiverSession,
        pairs: PairMaker,
        invitation: str,
        channel: Channel,
        deadline: Deadline,
    ) -> None:
        receiver.pair = pairs.join(invitation, SENDER, self._until(channel, deadline.sooner(JOIN_S)))
        receiver.closing.callback(receiver.pair.close)

    def _until(self, channel: Channel, deadline: Deadline) -> WaitLimit:
        return WaitLimit(deadline, lambda: self._stopping.is_set() or channel.wire.has_ended)

    def _staged(self, receiver: _ReceiverSession, offer: Offer, start: int, end: int) -> _Rest:
        """Prepare a piece for the pair before the answer: the receiver's device waits for bytes alone."""
        pair, size_bytes = receiver.pair, end - start
        if pair is None:
            raise WeightsError("is not one of a pair on this connection")
        if self._stopping.wait(self._throttle.take(size_bytes)):
            raise WeightsError("the sender is stopping")
        memory = pair.memory(size_bytes)
        while memory:
            read = os.preadv(offer.descriptor, [memory], end - len(memory))
            if read == 0:
                raise WeightsError("a file of weights became shorter")
            memory = memory[read:]

        def send(channel: Channel, deadline: Deadline) -> None:
            pair.send(size_bytes, self._until(channel, deadline.sooner(MOVE_S)))
            with self._lock:
                self._sent = replace(self._sent, paired=self._sent.paired + size_bytes)

        return send

    def _place(self, weight_version: int, blob: str) -> RemoteMemory:
        with self._catalog.open(weight_version, blob) as offer:
            if self._memory is None or not offer.pieces.is_complete:
                raise WeightsError(f"provides version {weight_version} only over this connection")
            return self._memory.place(weight_version, blob, offer.descriptor, self._catalog.versions)

    def _send(self, offer: Offer, start: int, end: int, channel: Channel, deadline: Deadline) -> None:
        view = offer.view if channel.wire.is_within_a_host else None
        slice_bytes = _THROTTLED_BYTES if self._throttle.is_on else end - start
        while start < end:
            size_bytes = min(slice_bytes, end - start)
            if self._stopping.wait(self._throttle.take(size_bytes)):
                raise WeightsError("the sender is stopping")
            if view is None:
                channel.wire.send_file(offer.descriptor, start, size_bytes, deadline)
            else:
                channel.wire.send(view[start : start + size_bytes], deadline)
            start += size_bytes
            with self._lock:
                sent = self._sent
                if view is None:
                    self._sent = replace(sent, tcp=sent.tcp + size_bytes)
                else:
                    self._sent = replace(sent, in_host=sent.in_host + size_bytes)
