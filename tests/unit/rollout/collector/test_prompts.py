"""Images of an episode: kept once, shown as messages, and inside the window."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from rl_agent.chat.context.window import ContextLimits
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import Policy
from rl_agent.types import Observation, Status, StepResult
from tests.unit.rollout.episodes import (
    SAMPLING,
    FakeEngine,
    FakeEnvironment,
    make_setup,
    make_spec,
    run_episode,
)
from tests.unit.rollout.visual import IMAGE_TOKEN, VisualEngine, image_parts, known_images, look


async def test_images_go_as_messages_and_every_prompt_is_whole_again():
    class Visual(FakeEnvironment):
        async def step(self, action):
            result = await super().step(action)
            return StepResult(Observation("look", ("/tmp/a b.png",)), result.reward, done=result.done)

    engine = FakeEngine()
    trajectory = await run_episode(Visual(length=3), engine)

    assert [step.context_reset for step in trajectory.steps] == [False, True, True]
    assert trajectory.steps[1].prompt_token_ids == (7, 8, 9)
    image = {"type": "image_url", "image_url": {"url": "file:///tmp/a%20b.png"}}
    shown = [image, {"type": "text", "text": "look"}]
    assert engine.messages[1] == [
        {"role": "user", "content": "2+2="},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": shown},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": shown},
    ]


async def test_replaced_images_stay_where_the_engine_reads_them(tmp_path):
    screenshot = tmp_path / "screen.png"

    class Screen(FakeEnvironment):
        async def step(self, action):
            result = await super().step(action)
            Image.new("RGB", (8, len(self.actions))).save(screenshot)
            return replace(result, observation=Observation("look", (str(screenshot),)))

    setup = replace(make_setup(Screen(length=3)), images=tmp_path / "images")
    trajectory = await Episode(make_spec(), setup).run()

    kept = [Path(step.observation.images[0]) for step in trajectory.steps[1:]]
    sizes = []
    for path in kept:
        with Image.open(path) as image:
            sizes.append(image.size)
    assert sizes == [(8, 1), (8, 2)]
    assert all(path.is_relative_to(tmp_path / "images") for path in kept)


async def test_seventy_steps_with_a_window_of_three_store_each_screenshot_once(tmp_path):
    class Screens(FakeEnvironment):
        async def step(self, action):
            result = await super().step(action)
            return replace(result, observation=look(tmp_path, len(self.actions) // 2))  # half change nothing

    engine = VisualEngine()
    limits = ContextLimits("window", max_images=3)
    policy = Policy(engine, EngineGate(8), engine.chat, SAMPLING, limits=limits, image_tokens=known_images())
    setup = make_setup(Screens(70), engine, policy=policy, images=tmp_path / "images")
    trajectory = await Episode(make_spec(max_steps=70), setup).run()

    assert trajectory.reward == 1.0 and len(trajectory.steps) == 70
    stored = [file for file in (tmp_path / "images").rglob("*") if file.is_file()]
    different = {file.read_bytes() for file in tmp_path.glob("screen-*.png")}
    assert len(stored) == 35 and {file.read_bytes() for file in stored} <= different
    assert max(len(image_parts(messages)) for messages in engine.messages) == 3


@pytest.mark.parametrize("takes_images", [False, True])
async def test_images_beside_tokens_make_the_prompts_that_messages_make(tmp_path, takes_images):
    class Screens(FakeEnvironment):
        async def step(self, action):
            result = await super().step(action)
            return replace(result, observation=look(tmp_path, len(self.actions)))

    engine, messages = VisualEngine(), VisualEngine()
    engine.takes_images = takes_images
    limits = ContextLimits("window", max_images=2)
    trajectories = []
    for each in (engine, messages):
        policy = Policy(each, EngineGate(8), each.chat, SAMPLING, limits=limits, image_tokens=known_images())
        setup = make_setup(Screens(5), each, policy=policy, images=tmp_path / "images")
        trajectories.append(await Episode(make_spec(max_steps=5), setup).run())

    ours, theirs = ([step.prompt_token_ids for step in trajectory.steps] for trajectory in trajectories)
    assert ours == theirs and engine.contexts == messages.contexts
    assert len(engine.messages) == (0 if takes_images else 4)
    shown = [list(step.seen.images) for step in trajectories[0].steps if step.seen.images]
    assert [len(digests) for digests in shown] == [1, 2, 2, 2]
    assert engine.shown == (shown if takes_images else [])


async def test_a_placeholder_that_the_model_wrote_is_shown_as_characters(tmp_path):
    class Screens(FakeEnvironment):
        async def step(self, action):
            result = await super().step(action)
            return replace(result, observation=look(tmp_path, len(self.actions)))

    class Writer(VisualEngine):
        def generation(self):
            generation = super().generation()
            end = generation.token_ids[-1]
            ids = (*generation.token_ids[:-1], IMAGE_TOKEN, end)
            return replace(generation, token_ids=ids, logprobs=(-0.1,) * len(ids), text="4<|image_pad|>")

    engine = Writer()
    engine.takes_images = True
    policy = Policy(engine, EngineGate(8), engine.chat, SAMPLING, image_tokens=known_images())
    setup = make_setup(Screens(3), engine, policy=policy, images=tmp_path / "images")
    trajectory = await Episode(make_spec(max_steps=3), setup).run()

    assert trajectory.status is Status.COMPLETED and len(engine.shown) == 2
    assert [step.context_reset for step in trajectory.steps] == [False, True, True]
    assert engine.chat.decode(trajectory.steps[2].prompt_token_ids).count("4< |image_pad|>") == 2


async def test_an_image_that_is_not_there_ends_its_episode_only(tmp_path):
    class Blind(FakeEnvironment):
        async def reset(self, task, seed):
            return Observation("look", (str(tmp_path / "missing.png"),))

    trajectory = await Episode(make_spec(), replace(make_setup(Blind()), images=tmp_path / "images")).run()

    assert trajectory.status is Status.FAILED
    assert "missing.png" in trajectory.failure.message
