"""The ShareGPT export: what LLaMA-Factory reads is what was shown and said."""

import dataclasses
import json

import pytest
from pydantic import TypeAdapter

from rl_agent.rollout.line import to_line
from rl_agent.types import EpisodeKey
from rl_agent.update.export import (
    DATASET,
    VALIDATION,
    Dialogue,
    TokenTexts,
    example,
    examples,
    write_dataset,
    write_dataset_info,
)
from tests.unit.trajectories import make_step, make_trajectory

TOKENS = TokenTexts(("<|endoftext|>", "<|im_end|>"), ("<|image_pad|>",))
DIALOGUE = TypeAdapter(Dialogue)


def dialogue(*steps, system_prompt: str = "", index: int = 0) -> Dialogue:
    """As it is read back from a shard's line."""
    trajectory = make_trajectory(index, steps=steps, system_prompt=system_prompt)
    return DIALOGUE.validate_json(to_line(trajectory))


def said(response: str) -> str:
    return example(dialogue(make_step(response)), 0, TOKENS)["conversations"][-1]["value"]


def test_a_step_becomes_the_conversation_up_to_its_response():
    talk = dialogue(
        make_step("left<|im_end|>", observation="a wall"),
        make_step("right<|im_end|>", observation="a door"),
        make_step("open<|im_end|>", observation="locked"),
        system_prompt="You walk.",
    )
    assert example(talk, 1, TOKENS) == {
        "conversations": [
            {"from": "human", "value": "a wall"},
            {"from": "gpt", "value": "left"},
            {"from": "human", "value": "a door"},
            {"from": "gpt", "value": "right"},
        ],
        "system": "You walk.",
    }


def test_the_system_field_is_always_there():
    assert example(dialogue(make_step()), 0, TOKENS)["system"] == ""


@pytest.mark.parametrize(
    ("response", "exported"),
    [
        ("8<|im_end|>", "8"),
        ("8", "8"),
        (" 8\n<|im_end|>", " 8\n"),  # blanks were sampled too
        ("8<|endoftext|>", "8"),
        ("<|im_end|> in the middle", "<|im_end|> in the middle"),
        ("<think>two</think>8<|im_end|>", "<think>two</think>8"),
        ("two</think>8<|im_end|>", "<think>\ntwo</think>8"),
        ("ein Ü, 日本, 🙂<|im_end|>", "ein Ü, 日本, 🙂"),
    ],
)
def test_a_response_is_what_was_sampled_without_the_end_of_its_turn(response, exported):
    assert said(response) == exported


def test_words_that_look_like_media_are_defused():
    assert said("see <image> and <video><audio>") == "see < image> and < video>< audio>"
    assert said("<|image_pad|><|image_pad|>") == "< |image_pad|>< |image_pad|>"
    shown = example(dialogue(make_step(observation="an <image> tag")), 0, TOKENS)
    assert shown["conversations"][0]["value"] == "an < image> tag"
    assert "images" not in shown


def test_images_are_placed_before_their_text_and_listed_in_order():
    talk = dialogue(
        make_step(observation="one", images=("/i/a.png",)),
        make_step(observation="none"),
        make_step(observation="two", images=("/i/b.png", "/i/c.png")),
    )
    row = example(talk, 2, TOKENS)
    assert [turn["value"] for turn in row["conversations"][::2]] == [
        "<image>one",
        "none",
        "<image><image>two",
    ]
    assert row["images"] == ["/i/a.png", "/i/b.png", "/i/c.png"]
    assert example(talk, 1, TOKENS)["images"] == ["/i/a.png"]


def test_only_the_chosen_steps_are_exported_in_the_order_of_the_file():
    talks = [dialogue(make_step("a"), make_step("b"), index=i) for i in range(3)]
    chosen = {EpisodeKey("task-2", 0, 0): [1, 0], EpisodeKey("task-0", 0, 0): [1]}
    exported = [(key.task_id, step) for key, step, _ in examples(talks, chosen, TOKENS)]
    assert exported == [("task-0", 1), ("task-2", 0), ("task-2", 1)]


def test_a_dialogue_is_read_without_its_tokens():
    names = {field.name for field in dataclasses.fields(dialogue(make_step()).steps[0].generation)}
    assert names == {"text"}


@pytest.mark.parametrize("with_images", [False, True])
def test_the_files_name_each_other(tmp_path, with_images):
    row = example(dialogue(make_step("ü")), 0, TOKENS)
    write_dataset(tmp_path, DATASET, [row, row])
    write_dataset_info(tmp_path, [DATASET, VALIDATION], with_images=with_images)

    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert list(info) == [DATASET, VALIDATION]
    assert info[DATASET]["formatting"] == "sharegpt"
    assert ("images" in info[DATASET]["columns"]) == with_images
    lines = (tmp_path / info[DATASET]["file_name"]).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [row, row]
    assert not list(tmp_path.glob("*.tmp"))
