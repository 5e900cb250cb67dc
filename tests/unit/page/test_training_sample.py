"""A sample is shown as the trainer makes it: context, images, tokens with loss, advantages of the group."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rl_agent.page.tokens import DrawnToken, TokenWords
from rl_agent.page.training_sample import TOKENS_A_SEQUENCE, DrawnImage, colour_of, drawn_sample
from rl_agent.types import SeenContext, Status
from tests.integration.trainer.settings import loss_settings
from tests.unit.page.stores import keep_png
from tests.unit.trainer.grpo.data.test_samples import sibling, steps_of

IMAGE = 50
FOLDER = Path("images")
ONE_TURN = steps_of(((1, 2), (3, 4), True))


def group_of(*rewards, steps=ONE_TURN):
    return [sibling(attempt, reward=reward, steps=steps) for attempt, reward in enumerate(rewards)]


def sample_of(siblings, attempt=0, images=FOLDER, sequence=0, tokens_from=0, **loss):
    key, words = siblings[attempt].key, TokenWords(None, IMAGE)
    part = {"sequence": sequence, "tokens_from": tokens_from}
    return drawn_sample(siblings, key, loss_settings(**loss), words, images, **part)


def seeing(step, *images):
    digests = tuple(Path(path).stem for path in images)
    observation = replace(step.observation, images=images)
    return replace(step, observation=observation, seen=SeenContext("everything", digests))


def shown(sequence):
    return [
        (piece.text, piece.colour) if isinstance(piece, DrawnToken) else piece for piece in sequence.pieces
    ]


def test_a_sequence_shows_runs_of_context_and_single_tokens_with_loss():
    steps = steps_of(((1, 2), (3, 4), False), ((5,), (6,), False))
    (sequence,) = sample_of(group_of(1.0, 0.0, steps=steps)).sequences
    assert shown(sequence) == [
        ("#1 #2 ", "context"),
        ("#3 ", "up2"),
        ("#4 ", "up2"),
        ("#5 ", "context"),
        ("#6 ", "up2"),
    ]
    assert (sequence.tokens, sequence.response_tokens) == (6, 3)
    assert sequence.pieces[1].words == "token 3, logprob -0.300"
    assert sequence.pieces[0].words == "2 tokens of context"


def test_each_context_that_was_sent_anew_is_a_sequence():
    steps = steps_of(((1, 2), (3,), True), ((1, 9), (6, 7), True))
    sample = sample_of(group_of(0.0, 1.0, steps=steps))
    assert [sequence.response_tokens for sequence in sample.sequences] == [1, 2]
    assert shown(sample.sequences[1])[1] == ("#6 ", "down2")


@pytest.mark.parametrize(
    ("loss", "advantages"),
    [
        ({"advantage": "dr_grpo"}, {0: 0.5, 1: -0.5}),
        ({"advantage": "reinforce"}, {0: 1.0, 1: 0.0}),
        ({"advantage": "rloo"}, {0: 1.0, 1: -1.0}),
    ],
)
def test_advantages_are_of_the_siblings_that_have_a_reward(loss, advantages):
    failed = replace(sibling(2, status=Status.FAILED), steps=ONE_TURN)
    assert sample_of([*group_of(1.0, 0.0), failed], **loss).advantages == advantages


@pytest.mark.parametrize(
    ("advantage", "colour"),
    [
        (2.0, "up3"),
        (1.0, "up2"),
        (0.1, "up1"),
        (0.0, "even"),
        (-0.1, "down1"),
        (-1.0, "down2"),
        (-9.0, "down3"),
    ],
)
def test_the_colour_says_sign_and_size_of_the_advantage(advantage, colour):
    assert colour_of(advantage) == colour


def test_an_image_stands_in_the_place_of_its_tokens(paths):
    first, gone = keep_png(paths), "images/ab/" + "ab" * 32 + ".png"
    (step,) = steps_of(((1, IMAGE, IMAGE, 2, IMAGE, 5), (3,), True))
    steps = (seeing(step, first, gone),)
    (sequence,) = sample_of(group_of(1.0, 0.0, steps=steps), images=paths.images).sequences
    assert shown(sequence) == [
        ("#1 ", "context"),
        DrawnImage(str(Path(first).relative_to(paths.images)), 2),
        ("#2 ", "context"),
        DrawnImage(None, 1),
        ("#5 ", "context"),
        ("#3 ", "up2"),
    ]


def test_images_without_known_places_come_first(paths):
    steps = (seeing(ONE_TURN[0], keep_png(paths)),)
    (sequence,) = sample_of(group_of(1.0, steps=steps), images=paths.images).sequences
    assert sequence.pieces[0].tokens == 0 and len(sequence.pieces) == 4


CUT = tuple(replace(step, generation=replace(step.generation, finish_reason="length")) for step in ONE_TURN)
FLAWED = steps_of(((1, 2), (-3,), True))
PLACEHOLDER = steps_of(((1, 2), (IMAGE,), True))


@pytest.mark.parametrize(
    ("siblings", "loss", "problem"),
    [
        (group_of(1.0, 0.0, steps=CUT), {"overlong": "mask"}, "a response was cut off"),
        (group_of(1.0, 1.0), {"drop_uninformative": True}, "no episode of it has an advantage"),
        ([sibling(0, status=Status.FAILED), *group_of(1.0, 0.0)[1:]], {}, "has no reward"),
        (group_of(1.0, 0.0, steps=FLAWED), {}, "-3"),
        ([*group_of(1.0), sibling(1, reward=0.0, steps=PLACEHOLDER)], {}, "not as many places for images"),
    ],
)
def test_an_episode_that_is_not_trained_on_says_why(siblings, loss, problem):
    sample = sample_of(siblings, **loss)
    assert problem in sample.problem
    colours = {piece.colour for sequence in sample.sequences for piece in sequence.pieces}
    assert colours <= {"context", "unused"}


def test_a_long_sequence_is_drawn_in_stretches_with_each_token_once():
    count = 2 * TOKENS_A_SEQUENCE + 9
    siblings = group_of(1.0, 0.0, steps=steps_of(((100,), tuple(range(count)), True)))
    seen, begin = [], 0
    while begin <= count:
        (sequence,) = sample_of(siblings, tokens_from=begin).sequences
        seen += [piece.text for piece in sequence.pieces]
        begin = sequence.end
        if begin == sequence.tokens:
            break
    assert seen == ["#100 ", *(f"#{number} " for number in range(count))]


def test_a_sample_is_drawn_without_torch():
    script = (
        "import sys; from tests.unit.page.test_training_sample import group_of, sample_of;"
        "assert sample_of(group_of(1.0, 0.0)).advantages; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
