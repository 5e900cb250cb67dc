"""Images of an episode: kept once, shown as messages, and inside the window."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from rl_agent.chat.context.window import ContextLimits
from rl_agent.types import Observation, Status
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment, make_policy, run_episode
from tests.unit.rollout.visual import IMAGE_TOKEN, VisualEngine, image_parts, known_images, look


class Screens(FakeEnvironment):
    """Shows a page of its own after every `steps_a_page` actions."""

    def __init__(self, folder, length, *, steps_a_page=1):
        super().__init__(length)
        self._folder, self._steps_a_page = folder, steps_a_page

    async def step(self, action):
        result = await super().step(action)
        return replace(result, observation=look(self._folder, len(self.actions) // self._steps_a_page))


async def play(engine, folder, length, *, max_images=None, **pages):
    """Return the episode of an environment that shows pages."""
    limits = ContextLimits("window", max_images=max_images) if max_images else ContextLimits()
    policy = make_policy(engine, engine.chat, limits=limits, image_tokens=known_images())
    environment, kept = Screens(folder, length, **pages), {"images": folder / "images"}
    return await run_episode(environment, engine, max_steps=length, policy=policy, **kept)


async def test_images_go_as_messages_and_every_prompt_is_whole_again():
    class Visual(FakeEnvironment):
        async def step(self, action):
            return replace(await super().step(action), observation=Observation("look", ("/tmp/a b.png",)))

    engine = FakeEngine()
    trajectory = await run_episode(Visual(length=3), engine)

    assert [step.context_reset for step in trajectory.steps] == [False, True, True]
    assert trajectory.steps[1].prompt_token_ids == (7, 8, 9)
    image = {"type": "image_url", "image_url": {"url": "file:///tmp/a%20b.png"}}
    turns = ["2+2=", "4", *[[image, {"type": "text", "text": "look"}], "4"] * 2]
    messages = [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]
    assert engine.messages[1] == messages[:-1]


async def test_replaced_images_stay_where_the_engine_reads_them(tmp_path):
    screenshot = tmp_path / "screen.png"

    class Screen(FakeEnvironment):
        async def step(self, action):
            result = await super().step(action)
            Image.new("RGB", (8, len(self.actions))).save(screenshot)
            return replace(result, observation=Observation("look", (str(screenshot),)))

    trajectory = await run_episode(Screen(length=3), images=tmp_path / "images")
    kept = [Path(step.observation.images[0]) for step in trajectory.steps[1:]]
    sizes = []
    for path in kept:
        with Image.open(path) as image:
            sizes.append(image.size)
    assert sizes == [(8, 1), (8, 2)]
    assert all(path.is_relative_to(tmp_path / "images") for path in kept)


async def test_seventy_steps_with_a_window_of_three_store_each_screenshot_once(tmp_path):
    engine = VisualEngine()
    trajectory = await play(engine, tmp_path, 70, max_images=3, steps_a_page=2)

    assert trajectory.reward == 1.0 and len(trajectory.steps) == 70
    stored = [file for file in (tmp_path / "images").rglob("*") if file.is_file()]
    different = {file.read_bytes() for file in tmp_path.glob("screen-*.png")}
    assert len(stored) == 35 and {file.read_bytes() for file in stored} <= different
    assert max(len(image_parts(messages)) for messages in engine.messages) == 3


@pytest.mark.parametrize("takes_images", [False, True])
async def test_images_beside_tokens_make_the_prompts_that_messages_make(tmp_path, takes_images):
    engine, messages = VisualEngine(), VisualEngine()
    engine.takes_images = takes_images
    trajectories = [await play(each, tmp_path, 5, max_images=2) for each in (engine, messages)]

    ours, theirs = ([step.prompt_token_ids for step in trajectory.steps] for trajectory in trajectories)
    assert ours == theirs and engine.contexts == messages.contexts
    assert len(engine.messages) == (0 if takes_images else 4)
    shown = [list(step.seen.images) for step in trajectories[0].steps if step.seen.images]
    assert [len(digests) for digests in shown] == [1, 2, 2, 2]
    assert engine.shown == (shown if takes_images else [])


async def test_a_placeholder_that_the_model_wrote_is_shown_as_characters(tmp_path):
    class Writer(VisualEngine):
        def generation(self):
            generation = super().generation()
            ids = (*generation.token_ids[:-1], IMAGE_TOKEN, generation.token_ids[-1])
            return replace(generation, token_ids=ids, logprobs=(-0.1,) * len(ids), text="4<|image_pad|>")

    engine = Writer()
    engine.takes_images = True
    trajectory = await play(engine, tmp_path, 3)

    assert trajectory.status is Status.COMPLETED and len(engine.shown) == 2
    assert [step.context_reset for step in trajectory.steps] == [False, True, True]
    assert engine.chat.decode(trajectory.steps[2].prompt_token_ids).count("4< |image_pad|>") == 2


async def test_an_image_that_is_not_there_ends_its_episode_only(tmp_path):
    class Blind(FakeEnvironment):
        async def reset(self, task, seed):
            return Observation("look", (str(tmp_path / "missing.png"),))

    trajectory = await run_episode(Blind(), images=tmp_path / "images")
    assert trajectory.status is Status.FAILED
    assert "missing.png" in trajectory.failure.message
