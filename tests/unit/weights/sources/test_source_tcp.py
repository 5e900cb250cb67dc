"""A receiver's questions to a weight server, and what it makes of answers that are none."""

import numpy as np
import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection import messages
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.connection.messages import ServerAnswer
from rl_agent.weights.sources.source_tcp import RemoteMemory, TcpSource

SOON = Deadline.after(3600)


class Server:
    """The other end of an open channel: it answers each question with the next answer."""

    def __init__(self, *answers, raw=b""):
        self.answers, self.raw, self.questions = list(answers), raw, []
        self.wire = self

    def send(self, content, deadline):
        self.questions.append(messages.parse_question(content))

    def receive(self, deadline, **_):
        return messages.dump(self.answers.pop(0))

    def receive_into(self, target, deadline):
        target[:] = self.raw


def connected(*answers, raw=b""):
    connection = TcpSource("host", 7, b"token", 1.0).connection()
    connection._channel = Server(*answers, raw=raw)
    return connection


def test_it_is_named_by_its_address_and_asked_only_when_it_is_open():
    source = TcpSource("host", 7, b"token", 1.0)
    assert str(source) == "host:7"
    with pytest.raises(WeightsError, match="the connection was not opened"):
        source.connection().invitation("nccl", SOON)


def test_a_connection_that_was_interrupted_before_it_was_opened_opens_none():
    connection = TcpSource("127.0.0.1", 7, b"token", 1.0).connection()
    connection.interrupt()
    with pytest.raises(ConnectionAbortedError):
        connection.open(SOON)
    connection.close()


WANTED = np.ones(3, np.bool_)
CALLS = {
    "recommend": lambda connection: connection.recommend(4, "full", WANTED, 2, 0.5, SOON),
    "place": lambda connection: connection.place(4, "full", SOON),
    "pair": lambda connection: connection.invitation("nccl", SOON),
}


@pytest.mark.parametrize(
    ("call", "answer", "expected"),
    [
        ("recommend", ServerAnswer(indices=(2, 0)), [2, 0]),
        ("recommend", ServerAnswer(indices=()), []),
        ("place", ServerAnswer(session="10.0.0.1:5", address=0), RemoteMemory("10.0.0.1:5", 0)),
        ("pair", ServerAnswer(invitation="come"), "come"),
    ],
)
def test_an_answer_is_returned(call, answer, expected):
    assert CALLS[call](connected(answer)) == expected


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("recommend", ServerAnswer()),
        ("recommend", ServerAnswer(size_bytes=3)),
        ("place", ServerAnswer(session="10.0.0.1:5")),
        ("place", ServerAnswer(address=0)),
        ("pair", ServerAnswer(indices=(1,))),
    ],
)
def test_an_answer_without_what_was_asked_for_is_an_error_that_names_it(call, answer):
    with pytest.raises(WeightsError, match=f"invalid reply to '{call}': .* missing"):
        CALLS[call](connected(answer))


@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_is_in_the_servers_words(call):
    with pytest.raises(WeightsError, match=r"^there is no version 4$"):
        CALLS[call](connected(ServerAnswer(error="there is no version 4")))


def test_a_piece_is_read_into_its_place_and_one_of_another_size_is_not():
    target = memoryview(bytearray(3))
    connection = connected(ServerAnswer(size_bytes=3), ServerAnswer(size_bytes=2), raw=b"abc")
    connection.read_piece(4, "full", 1, 100, target, SOON)
    assert bytes(target) == b"abc"
    with pytest.raises(WeightsError, match="piece 1 has 2 bytes there, 3 by the manifest"):
        connection.read_piece(4, "full", 1, 100, target, SOON)


@pytest.mark.parametrize(("by_pair", "by"), [(False, None), (True, "pair")])
def test_a_piece_comes_over_the_pair_only_where_that_is_asked(by_pair, by):
    connection = connected(ServerAnswer(size_bytes=3))
    connection.ask_for_piece(4, "full", 1, 3, SOON, by_pair=by_pair)
    assert connection._channel.questions == [messages.PieceQuestion(4, "full", 1, by)]
