"""Questions and answers of a transfer are taken for what they are, or refused."""

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.messages import (
    ManifestQuestion,
    PairQuestion,
    PieceQuestion,
    PlaceQuestion,
    RecommendQuestion,
    ServerAnswer,
    dump,
    parse_answer,
    parse_question,
)


@pytest.mark.parametrize(
    "message",
    [
        ManifestQuestion(7),
        RecommendQuestion(7, "full", "ff", 4, 0.2),
        PieceQuestion(7, "delta", 3),
        PieceQuestion(7, "full", 3, "pair"),
        PlaceQuestion(7, "full"),
        PairQuestion("nccl 2.28.9"),
        ServerAnswer(),
        ServerAnswer(indices=(3, 4)),
        ServerAnswer(size_bytes=0),
        ServerAnswer(session="10.0.0.1:12345", address=2**47),
        ServerAnswer(session="[fe80::1]:12345", address=0),
        ServerAnswer(invitation="ab"),
    ],
)
def test_a_message_survives_being_written_and_read(message):
    parse = parse_answer if isinstance(message, ServerAnswer) else parse_question
    assert parse(dump(message)) == message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[" * 10**6,
        b'{"indices": [true]}',
        b'{"indices": [-1]}',
        b'{"indices": [9223372036854775808]}',
        b'{"size_bytes": true}',
        b'{"size_bytes": "1"}',
        b'{"session": "a host\\u0000:1", "address": 1}',
        b'{"session": "-:1:1", "address": false}',
        b'{"error": 1}',
    ],
    ids=lambda content: content[:20].decode(errors="replace"),
)
def test_malformed_answers_are_refused(content):
    with pytest.raises(WeightsError, match="invalid reply"):
        parse_answer(content)


def test_an_answer_that_says_why_there_is_none_is_that_reason():
    with pytest.raises(WeightsError, match=r"^has no version 7$"):
        parse_answer(dump(ServerAnswer(error="has no version 7")))
