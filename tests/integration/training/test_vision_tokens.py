"""The real LLaMA-Factory trains on screenshots as the engine saw them, token by token.

No model runs: the engine's part is done by the model's chat template and its real image processor, the
training's by LLaMA-Factory's own loading and collating. `test_vision` has a real vLLM and a real update.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from PIL import Image
from tokenizers import AddedToken, Tokenizer

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.chat.context.window import ContextLimits
from rl_agent.errors import StoreError
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.rollout.collector.policy import Policy
from rl_agent.trainer.llamafactory.dataset import export
from rl_agent.trainer.llamafactory.inputs import read_summary
from rl_agent.trainer.llamafactory.prepare import prepare
from rl_agent.types import Generation, Observation, StepResult, Trajectory
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.unit.rollout.episodes import SAMPLING, FakeEnvironment, make_setup, make_spec
from tests.unit.rollout.trajectories_made import make_header, write_shard
from tests.unit.rollout.visual import PROCESSOR, TEMPLATE, VISION, VisualEngine

STEPS = 5
SAID = "<think>\nthe gift is left\n</think>\n\nleft"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A thinking model's folder: its template strips the thoughts of earlier turns."""
    folder = make_tiny_model(tmp_path_factory.mktemp("seen") / "base")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in VISION])
    tokenizer.save(str(folder / "tokenizer.json"))
    start, pad, end = (tokenizer.token_to_id(token) for token in VISION)
    config = json.loads((folder / "config.json").read_bytes())
    named = {"vision_start_token_id": start, "image_token_id": pad, "vision_end_token_id": end}
    named |= {"model_type": "qwen3_vl"}
    (folder / "config.json").write_text(json.dumps(config | named))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def image_processor():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(patch_size=16, merge_size=2, size=PROCESSOR["size"])


class ProcessorEngine(VisualEngine):
    """Makes as many tokens of an image as the model's own processor."""

    def __init__(self, base: Path) -> None:
        chat = ChatTokenizer.load(str(base), {})
        self._tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
        super().__init__(SAID, chat=chat, image_token=self._tokenizer.token_to_id(VISION[1]))
        self._processor = image_processor()

    def pieces(self, path):
        with Image.open(path) as image:
            grid = self._processor(image, return_tensors="pt")["image_grid_thw"]
        return int(grid.prod()) // PROCESSOR["merge_size"] ** 2

    def generation(self):
        ids = tuple(self._tokenizer.encode(f"{self.say}<|im_end|>", add_special_tokens=False).ids)
        return Generation(ids, tuple(-0.1 for _ in ids), self.say, "stop", 0, 0)


class Lake(FakeEnvironment):
    """Screens of different sizes, one of which no multiple of a square divides."""

    def __init__(self, folder: Path) -> None:
        super().__init__(STEPS)
        self.folder = folder

    async def reset(self, task, seed):
        return self.screen()

    async def step(self, action):
        result = await super().step(action)
        return StepResult(self.screen(), result.reward, done=result.done)

    def screen(self) -> Observation:
        number = len(self.actions)
        path = self.folder / f"{number}.png"
        Image.new("RGB", (70 + 32 * number, 64), (number, 0, 0)).save(path)
        return Observation(f"Reach the gift. Step {number}.", (str(path),))


def play(base: Path, folder: Path, limits: ContextLimits) -> tuple[Trajectory, ProcessorEngine]:
    engine = ProcessorEngine(base)
    images = ImageTokens.load(base)
    policy = Policy(engine, EngineGate(1), engine.chat, SAMPLING, limits=limits, image_tokens=images)
    setup = make_setup(Lake(folder), engine, policy=policy, images=folder / "log" / "images")
    return asyncio.run(Episode(make_spec(), setup).run()), engine


def collated(plan) -> list[tuple[list[int], list[int], int]]:
    """Tokens, labels and pieces of images of each sample, as LLaMA-Factory puts them into a batch."""
    from llamafactory.data import SFTDataCollatorWith4DAttentionMask, get_dataset
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from transformers import AutoTokenizer

    arguments = yaml.safe_load(plan.paths.update_dir(1).joinpath("train.yaml").read_bytes())
    model_args, data_args, training_args, _, _ = get_train_args(arguments)
    tokenizer = AutoTokenizer.from_pretrained(arguments["model_name_or_path"])
    template = get_template_and_fix_tokenizer(tokenizer, data_args)
    rows = get_dataset(template, model_args, data_args, training_args, "sft", tokenizer)["train_dataset"]
    processor = SimpleNamespace(
        image_processor=image_processor(),
        image_max_pixels=arguments["image_max_pixels"],
        image_min_pixels=1024,
    )
    collate = SFTDataCollatorWith4DAttentionMask(template=template, tokenizer=tokenizer, processor=processor)
    batches = []
    for row in rows:
        batch = collate([dict(row)])
        pieces = int(batch["image_grid_thw"].prod(-1).sum()) // PROCESSOR["merge_size"] ** 2
        batches.append((batch["input_ids"][0].tolist(), batch["labels"][0].tolist(), pieces))
    return batches


@pytest.mark.parametrize(
    "limits",
    [ContextLimits(), ContextLimits(kind="window", max_images=2), ContextLimits(kind="window", max_rounds=0)],
    ids=["everything", "two images", "no history"],
)
def test_training_samples_are_the_tokens_the_engine_saw(tmp_path, base, limits):
    plan = make_plan(tmp_path / "log", base, "trainer.image_max_pixels=65536")
    trajectory, engine = play(base, tmp_path, limits)
    write_shard(plan.paths.shard("train", 1), make_header(1), trajectory)
    prepare(plan, 1)

    samples = collated(plan)

    assert read_summary(plan.paths.update_dir(1)).left_out == {}
    response = list(engine.generation().token_ids)
    assert [tokens for tokens, _, _ in samples] == [context + response for context in engine.contexts]
    assert [labels for _, labels, _ in samples] == [
        [-100] * len(context) + response for context in engine.contexts
    ]
    assert [pieces for _, _, pieces in samples] == [
        context.count(engine.image_token) for context in engine.contexts
    ]
    most = {"everything": STEPS, "window": limits.max_images or 1}[limits.kind]
    assert [len(step.seen.images) for step in trajectory.steps] == [min(n + 1, most) for n in range(STEPS)]
    assert all(len(engine.chat.decode(c).split("the gift is left")) == 1 for c in engine.contexts)


def test_a_sample_of_other_tokens_than_were_seen_is_refused(tmp_path, base, monkeypatch):
    plan = make_plan(tmp_path / "log", base, "trainer.image_max_pixels=65536")
    trajectory, _ = play(base, tmp_path, ContextLimits(kind="window", max_images=2))
    write_shard(plan.paths.shard("train", 1), make_header(1), trajectory)
    honest = export.example

    def longer(*given):
        exported = honest(*given)
        return replace(exported, input_ids=exported.input_ids.repeat(2), labels=exported.labels.repeat(2))

    monkeypatch.setattr(export, "example", longer)
    with pytest.raises(StoreError, match=r"task-0:0:0, step 0, .* has \d+ tokens where the engine saw"):
        prepare(plan, 1)
    assert not (plan.paths.update_dir(1) / "update.json").exists()

    def backwards(*given):
        exported = honest(*given)
        return replace(exported, images=exported.images[::-1])

    monkeypatch.setattr(export, "example", backwards)
    with pytest.raises(StoreError, match=r"task-0:0:0, step 1, .* the same in another order"):
        prepare(plan, 1)
