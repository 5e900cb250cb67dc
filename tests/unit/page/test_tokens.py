"""Tokens as they are shown: coloured by how likely they were, or by who sampled them with which weights."""

import pytest

from rl_agent.page.tokens import COLOURS, TOKENS_A_TURN, Palette, TokenWords
from rl_agent.types import Generation, TokenSpan

NAMES = {"aaaaaaaa": "spot-1"}
FIRST, SECOND = "a" * 32, "b" * 32


def response(*spans, count=5, versions=(3, 4)):
    logprobs = (-0.01, -0.5, -1.0, -3.0, -9.0)[:count]
    return Generation(tuple(range(count)), logprobs, "text", "stop", *versions, spans=spans)


def drawn(generation, colouring):
    palette = Palette(colouring, NAMES)
    return TokenWords(None).drawn(generation, palette), palette.legend


def test_by_logprob_the_colour_is_the_deeper_the_less_likely_a_token_was():
    tokens, legend = drawn(response(), "logprob")
    assert [token.colour for token in tokens] == ["lp0", "lp1", "lp2", "lp3", "lp4"]
    assert legend == [] and tokens[0].text == "#0 "
    assert tokens[1].words == "token 1, logprob -0.500, version 3 to 4"


def test_by_engine_or_version_each_token_has_the_colour_of_its_sampler():
    spans = (TokenSpan(2, 3, FIRST), TokenSpan(1, 4, FIRST), TokenSpan(2, 4, SECOND))
    tokens, legend = drawn(response(*spans), "engine")
    assert [token.colour for token in tokens] == ["made0"] * 3 + ["made1"] * 2
    assert legend == [("made0", "spot-1 (aaaaaaaa)"), ("made1", "engine bbbbbbbb")]
    assert tokens[2].words.endswith("version 4, spot-1 (aaaaaaaa)")
    tokens, legend = drawn(response(*spans), "version")
    assert [token.colour for token in tokens] == ["made0"] * 2 + ["made1"] * 3
    assert legend == [("made0", "version 3"), ("made1", "version 4")]


def test_a_response_of_one_server_or_an_older_file_has_one_version():
    tokens, legend = drawn(response(versions=(7, 7)), "version")
    assert {token.colour for token in tokens} == {"made0"} and legend == [("made0", "version 7")]
    assert drawn(response(), "engine")[1] == [("made0", "an engine that was not recorded")]


def test_a_prompt_is_the_end_of_its_tokens_without_the_pieces_of_images():
    assert TokenWords(None, image_token=7).text([5, 7, 7, 6]) == "#5 #6 "
    assert TokenWords(None).text(range(TOKENS_A_TURN + 2)).startswith("#2 #3 ")


@pytest.mark.parametrize("tokens", [-3, 2**70, 2])
def test_spans_that_do_not_fit_their_tokens_draw_every_token_all_the_same(tokens):
    tokens_drawn, _ = drawn(response(TokenSpan(tokens, 3, FIRST)), "engine")
    assert len(tokens_drawn) == 5


def test_a_long_response_shows_its_first_tokens_and_colours_repeat():
    many = tuple(TokenSpan(1, version, FIRST) for version in range(2 * COLOURS))
    count = TOKENS_A_TURN + 9
    generation = Generation((1,) * count, (-0.1,) * count, "", "length", 0, 9, spans=many)
    tokens_drawn, legend = drawn(generation, "version")
    assert len(tokens_drawn) == TOKENS_A_TURN
    assert tokens_drawn[0].colour == tokens_drawn[COLOURS].colour != tokens_drawn[1].colour
    assert len(legend) > COLOURS


def test_a_later_stretch_of_a_response_has_its_own_tokens_texts_and_makers():
    count = TOKENS_A_TURN + 9
    logprobs = tuple(-float(n) for n in range(count))
    spans = (TokenSpan(TOKENS_A_TURN + 4, 3, FIRST), TokenSpan(5, 4, FIRST))
    generation = Generation(tuple(range(count)), logprobs, "", "length", 3, 4, spans=spans)
    tokens_drawn = TokenWords(None).drawn(generation, Palette("version", NAMES), TOKENS_A_TURN)
    assert [token.text for token in tokens_drawn] == [f"#{n} " for n in range(TOKENS_A_TURN, count)]
    assert [token.colour for token in tokens_drawn] == ["made0"] * 4 + ["made1"] * 5
    assert tokens_drawn[0].words.startswith(f"token {TOKENS_A_TURN}, logprob -{TOKENS_A_TURN}.000, version 3")
