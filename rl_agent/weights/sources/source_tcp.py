"""Reads pieces from a weight server over one connection; several of these make several streams."""

import socket
from dataclasses import dataclass

from msgspec import UNSET

from rl_agent.errors import WeightsError
from rl_agent.weights.connection import messages
from rl_agent.weights.connection.channel import Channel, connect
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.format.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from rl_agent.weights.format.pieces import Bits, bits_to_text
from rl_agent.weights.sources.interruptible import Interruptible


@dataclass(frozen=True, slots=True)
class RemoteMemory:
    """The place of a blob in the sender's memory, for a transfer engine."""

    session: str
    address: int


@dataclass(frozen=True, slots=True)
class TcpSource:
    """The address and token of a weight server."""

    host: str
    port: int
    token: bytes
    idle_timeout_s: float

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def connection(self) -> "TcpConnection":
        return TcpConnection(self)


class TcpConnection(Interruptible):
    """Raises WeightsError for an answer that is none, OSError where the connection breaks."""

    def __init__(self, source: TcpSource) -> None:
        super().__init__()
        self._source = source
        self._channel: Channel | None = None

    def open(self, deadline: Deadline) -> None:
        source = self._source
        family, kind, protocol, _, address = socket.getaddrinfo(
            source.host, source.port, type=socket.SOCK_STREAM
        )[0]
        connection = self._keep(socket.socket(family, kind, protocol))
        self._channel = connect(connection, address, source.token, deadline, source.idle_timeout_s)

    def manifest(self, weight_version: int, digest: str | None, deadline: Deadline) -> Manifest:
        self._ask(messages.ManifestQuestion(weight_version), deadline)
        content = self._opened.receive(deadline, most_bytes=MAX_MANIFEST_BYTES)
        return parse_manifest(content, expected_digest=digest)

    def recommend(
        self, weight_version: int, blob: str, bits: Bits, limit: int, wait_s: float, deadline: Deadline
    ) -> list[int]:
        """Return which of the wanted pieces to ask for next; none if the server has none of them yet."""
        question = messages.RecommendQuestion(weight_version, blob, bits_to_text(bits), limit, wait_s)
        indices = self._ask(question, deadline).indices
        if indices is UNSET:
            raise WeightsError("invalid reply to 'recommend': indices is missing")
        return list(indices)

    def place(self, weight_version: int, blob: str, deadline: Deadline) -> RemoteMemory:
        """Ask where a blob is in the sender's memory. Raises WeightsError if it is not to be read there."""
        answer = self._ask(messages.PlaceQuestion(weight_version, blob), deadline)
        if answer.session is UNSET or answer.address is UNSET:
            raise WeightsError("invalid reply to 'place': session or address is missing")
        return RemoteMemory(answer.session, answer.address)

    def read_piece(
        self, weight_version: int, blob: str, index: int, start: int, target: memoryview, deadline: Deadline
    ) -> None:
        """Fill `target` with what the server says is piece `index`; it is for the caller to verify."""
        self.ask_for_piece(weight_version, blob, index, len(target), deadline)
        self._opened.wire.receive_into(target, deadline)

    def ask_for_piece(
        self,
        weight_version: int,
        blob: str,
        index: int,
        size_bytes: int,
        deadline: Deadline,
        *,
        by_pair: bool = False,
    ) -> None:
        """Ask for a piece: its bytes come next, over this connection or over the pair beside it."""
        question = messages.PieceQuestion(weight_version, blob, index, "pair" if by_pair else None)
        there_bytes = self._ask(question, deadline).size_bytes
        if there_bytes != size_bytes:
            raise WeightsError(f"piece {index} has {there_bytes} bytes there, {size_bytes} by the manifest")

    def invitation(self, kind: str, deadline: Deadline) -> str:
        """Ask for an invitation to a pair. Raises WeightsError if the server makes none of this kind."""
        invitation = self._ask(messages.PairQuestion(kind), deadline).invitation
        if invitation is UNSET:
            raise WeightsError("invalid reply to 'pair': invitation is missing")
        return invitation

    @property
    def has_ended(self) -> bool:
        return self._opened.wire.has_ended

    @property
    def _opened(self) -> Channel:
        if self._channel is None:
            raise WeightsError("the connection was not opened")
        return self._channel

    def _ask(self, question: messages.Question, deadline: Deadline) -> messages.ServerAnswer:
        self._opened.send(messages.dump(question), deadline)
        return messages.parse_answer(self._opened.receive(deadline))
