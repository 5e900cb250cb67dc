"""The export: what LLaMA-Factory trains on is what was seen and sampled, token by token."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from rl_agent.rollout.trajectories.images import digest_of, keep_images
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.trainer.llamafactory.dataset.export import (
    IGNORED,
    Example,
    ExportedEpisode,
    ExportSettings,
    Reason,
    example,
    examples,
    write_datasets,
)
from rl_agent.types import Compaction, EpisodeKey, Observation, SeenContext
from tests.support.tiny_chat import CHATML, tiny_chat, tiny_tokenizer
from tests.unit.rollout.trajectories.test_images import png
from tests.unit.rollout.trajectories_made import make_step, make_trajectory

NO_THOUGHT = "<think>\n\n</think>\n\n"
CHAT = tiny_chat()
DIALOGUE = TypeAdapter(ExportedEpisode)
IMAGE_START, IMAGE, IMAGE_END = 7, 8, 9


def terms(**changed) -> ExportSettings:
    given = {
        "chat": CHAT,
        "media": frozenset(),
        "image_start": None,
        "mask_history": True,
        "image_max_pixels": 10_000,
        "images": Path("/no/such/log/images"),
    }
    return ExportSettings(**given | changed)


def sees(**changed) -> ExportSettings:
    """Terms of a model that takes images; three tokens are theirs."""
    return terms(media=frozenset({IMAGE_START, IMAGE, IMAGE_END}), image_start=IMAGE_START, **changed)


def dialogue(*steps, index: int = 0) -> ExportedEpisode:
    """Make it as it is read back from a shard's line."""
    return DIALOGUE.validate_json(to_line(make_trajectory(index, steps=steps)))


def loss_on(exported: Example | Reason) -> list[int]:
    """Tokens that have a label, which is the token itself."""
    assert isinstance(exported, Example)
    pairs = zip(exported.input_ids.tolist(), exported.labels.tolist(), strict=True)
    assert all(label in (IGNORED, token) for token, label in pairs)
    return [label for label in exported.labels.tolist() if label != IGNORED]


def ids(text: str) -> list[int]:
    return tiny_tokenizer().encode(text, add_special_tokens=False).ids


def talk(*replies: str, chat=CHAT) -> ExportedEpisode:
    """A conversation as the collector holds it: the context grows at its end."""
    steps, prompt = [], chat.start("Be brief.", Observation("What is 5 + 7?"))
    for reply in replies:
        steps.append(make_step(reply, prompt=tuple(prompt)))
        prompt = chat.extend(ids(reply), Observation("Are you sure?"))
    return dialogue(*steps)


def test_the_loss_is_on_the_response_in_the_context_that_was_seen():
    exported = example(talk("12<|im_end|>", "Yes, 12.<|im_end|>"), 1, terms())
    assert loss_on(exported) == ids("Yes, 12.<|im_end|>")
    assert CHAT.decode(exported.input_ids.tolist()) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 5 + 7?<|im_end|>\n"
        "<|im_start|>assistant\n12<|im_end|>\n<|im_start|>user\nAre you sure?<|im_end|>\n"
        "<|im_start|>assistant\nYes, 12.<|im_end|>"
    )


def test_an_empty_thought_that_stood_in_the_prompt_has_no_loss():
    template = CHATML.replace("assistant\\n' -}}{%- endif", f"assistant\\n{NO_THOUGHT!r}' -}}}}{{%- endif")
    template = template.replace(repr(NO_THOUGHT), NO_THOUGHT.replace("\n", "\\n"))
    chat = tiny_chat(template)
    exported = example(talk("12<|im_end|>", "Yes<|im_end|>", chat=chat), 1, terms(chat=chat))
    assert loss_on(exported) == ids("Yes<|im_end|>")
    assert chat.decode(exported.input_ids.tolist()).count(NO_THOUGHT) == 2


@pytest.mark.parametrize(
    "response",
    [
        "<think>two</think>8<|im_end|>",
        "two</think>8<|im_end|>",  # its <think> stood in the prompt
        "8",  # cut off by the token limit: nothing is added
        " 8\n<|im_end|>",
        "see <image> and <video><audio><|im_end|>",
        "<|im_end|> in the middle<|im_end|>",
        "ein Ü, 日本, 🙂<|im_end|>",
        "<|im_end|>",
    ],
)
def test_a_response_is_trained_on_as_it_was_sampled(response):
    assert loss_on(example(talk(response), 0, terms())) == ids(response)


def test_a_response_that_ends_within_a_character_is_trained_on():
    step = make_step("7Ü")
    tokens = step.generation.token_ids[:-1]  # half of the Ü
    recorded = dialogue(step).steps[0]
    for text in ("7", "7\ufffd"):  # as a server shows it, and as it is decoded here
        generation = type(recorded.generation)(text, tokens)
        turn = type(recorded)(recorded.observation, recorded.prompt_token_ids, generation)
        assert loss_on(example(ExportedEpisode(EpisodeKey("t", 0, 0), (turn,)), 0, terms())) == list(tokens)


def test_without_masked_history_earlier_responses_have_loss_too():
    both = ids("12<|im_end|>") + ids("Yes<|im_end|>")
    assert loss_on(example(talk("12<|im_end|>", "Yes<|im_end|>"), 1, terms(mask_history=False))) == both


def test_after_a_reset_the_context_is_what_was_sent_then():
    steps = (
        make_step("a<|im_end|>", prompt=(10, 11)),
        make_step("b<|im_end|>", prompt=(12, 13, 14), context_reset=True),
        make_step("c<|im_end|>", prompt=(15,)),
    )
    exported = example(dialogue(*steps), 2, terms(mask_history=False))
    assert exported.input_ids.tolist() == [12, 13, 14, *ids("b<|im_end|>"), 15, *ids("c<|im_end|>")]
    assert loss_on(exported) == [*ids("b<|im_end|>"), *ids("c<|im_end|>")]


def with_summary(picture, **changed):
    first, second = shown(picture(80)), make_step("c<|im_end|>", prompt=(30,), context_reset=True)
    summary = make_step("so far<|im_end|>").generation
    look = (20, IMAGE_START, IMAGE, IMAGE_END, 21)
    values = {"steps": 1, "prompt_token_ids": look, "images": (picture(80),), "generation": summary}
    compaction = Compaction(**values | changed)
    return dialogue(first, replace(second, seen=SeenContext("summary", (), 1, 0, (compaction,))))


def test_a_summary_is_its_own_example_with_the_images_it_summarises(picture):
    seen = with_summary(picture)
    exported = example(seen, ~1, sees())
    assert exported.input_ids.tolist() == [20, IMAGE_START, IMAGE, IMAGE_END, 21, *ids("so far<|im_end|>")]
    assert loss_on(exported) == ids("so far<|im_end|>") and exported.images == (picture(80),)
    after = example(seen, 1, sees())
    assert after.input_ids.tolist() == [30, *ids("c<|im_end|>")] and after.images == ()


def test_a_summary_of_other_images_than_its_tokens_show_is_left_out(picture):
    assert example(with_summary(picture, images=()), ~1, sees()) is Reason.MEDIA


def test_a_response_without_tokens_is_left_out_for_that_reason():
    step = make_step("12<|im_end|>")
    text = replace(step.generation, token_ids=(), logprobs=())
    assert example(dialogue(replace(step, generation=text)), 0, terms()) is Reason.NO_TOKENS


def test_tokens_of_another_tokenizer_are_left_out():
    step = make_step("12<|im_end|>")
    other = type(step.generation)
    values = {name: getattr(step.generation, name) for name in other.__slots__}
    elsewhere = other(**values | {"token_ids": (40, 41, 2)})
    mixed = dialogue(type(step)(step.observation, (1, 2, 3), elsewhere, "12", 1.0, True))
    assert example(mixed, 0, terms()) is Reason.OTHER_TOKENS


@pytest.fixture
def picture(tmp_path):
    from PIL import Image

    def draw(width: int = 64, height: int = 64) -> str:
        path = tmp_path / f"{width}x{height}.png"
        Image.new("RGB", (width, height)).save(path)
        return str(path)

    return draw


def shown(
    image: str,
    *,
    before: tuple[str, ...] = (),
    prompt=(20, IMAGE_START, IMAGE, IMAGE, IMAGE_END, 21),
    response="left<|im_end|>",
):
    step = make_step(response, images=(image,), prompt=prompt, context_reset=True)
    digests = tuple(digest_of(path) or path for path in (*before, image))
    return replace(step, seen=SeenContext("window", digests))


def test_images_are_listed_in_the_order_of_their_placeholders(picture):
    first, second = picture(), picture(80)
    both = (20, IMAGE_START, IMAGE, IMAGE_END, 21, IMAGE_START, IMAGE, IMAGE_END, 22)
    seen = dialogue(shown(first), shown(second, before=(first,), prompt=both))
    exported = example(seen, 1, sees())
    assert exported.images == (first, second)
    assert exported.input_ids.tolist() == [*both, *ids("left<|im_end|>")]
    assert loss_on(exported) == ids("left<|im_end|>")
    assert example(seen, 0, sees()).images == (first,)


def test_a_media_token_that_a_task_wrote_is_left_out():
    seen = dialogue(make_step("hi", prompt=(20, IMAGE, 21)))
    assert example(seen, 0, sees()) is Reason.MEDIA
    assert loss_on(example(seen, 0, terms())) == ids("hi")  # to another model the token is text


def test_a_media_token_written_by_the_model_drops_its_step_and_later_ones(picture):
    wrote = tiny_tokenizer().decode([IMAGE])
    seen = dialogue(shown(picture(), response=wrote), shown(picture()))
    assert example(seen, 0, sees()) is Reason.MEDIA
    assert example(seen, 1, sees()) is Reason.MEDIA


def test_a_context_that_shows_other_images_than_are_recorded_is_left_out(picture):
    seen = dialogue(shown(picture()), shown(picture(), before=(picture(),)))  # its tokens hold one of the two
    assert example(seen, 1, sees()) is Reason.MEDIA


@pytest.mark.parametrize("size", [(101, 100), (20, 400), (30, 30), (28, 6000)])
def test_an_image_that_llamafactory_would_resize_is_left_out(picture, size):
    assert example(dialogue(shown(picture(*size))), 0, sees()) is Reason.IMAGE


def test_an_image_that_is_gone_is_left_out():
    assert example(dialogue(shown("/no/such.png")), 0, sees()) is Reason.LOST_IMAGE


def test_a_changed_image_is_left_out_and_a_moved_one_is_found(picture, tmp_path):
    look = Observation("look", (picture(),))
    (kept,) = keep_images(look, tmp_path / "log" / "images").images
    (tmp_path / "log").rename(tmp_path / "moved")
    moved = tmp_path / "moved" / "images"
    (image,) = example(dialogue(shown(kept)), 0, sees(images=moved)).images
    assert image.startswith(str(moved))
    Path(image).write_bytes(Path(picture(65)).read_bytes())
    assert example(dialogue(shown(kept)), 0, sees(images=moved)) is Reason.LOST_IMAGE


def test_an_image_that_pillow_takes_for_an_attack_is_left_out(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png(30_000, 30_000))
    assert example(dialogue(shown(str(tmp_path / "bomb.png"))), 0, sees()) is Reason.IMAGE


def test_only_the_chosen_steps_are_exported_in_the_order_of_the_file():
    talks = [dialogue(make_step("a"), make_step("b"), index=i) for i in range(3)]
    chosen = {EpisodeKey("task-2", 0, 0): [1, 0], EpisodeKey("task-0", 0, 0): [1]}
    exported = [(key.task_id, step) for key, step, _ in examples(talks, chosen, terms())]
    assert exported == [("task-0", 1), ("task-2", 0), ("task-2", 1)]


def test_the_files_hold_the_examples_and_are_the_same_each_time(tmp_path, picture):
    from datasets import load_from_disk

    def write(folder):
        exported = [example(talk("12<|im_end|>"), 0, terms()), example(dialogue(shown(picture())), 0, sees())]
        return write_datasets(folder, exported, exported[:1]), exported

    target, exported = write(tmp_path / "one")
    read = load_from_disk(str(target))
    assert [row["input_ids"] for row in read["train"]] == [each.input_ids.tolist() for each in exported]
    assert [row["labels"] for row in read["train"]] == [each.labels.tolist() for each in exported]
    assert [row["images"] for row in read["train"]] == [None, list(exported[1].images)]
    assert all(set(row["attention_mask"]) == {1} for row in read["train"])
    assert len(read["validation"]) == 1
    again, _ = write(tmp_path / "two")
    files = sorted(path.relative_to(target) for path in target.rglob("*.arrow"))
    assert len(files) == 2
    assert all((again / name).read_bytes() == (target / name).read_bytes() for name in files)
