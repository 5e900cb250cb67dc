"""The web quickstart's model: its tokens, and that it is taught by the very arithmetic of transformers."""

import random
import sys

import pytest
import torch

from rl_agent.env.web.actions import read_action
from rl_agent.paths import PROJECT_ROOT

sys.path.insert(0, str(PROJECT_ROOT / "data"))

import teach_vision_model
from teach_vision_model import COLUMNS, IMAGE_TOKENS, PATCH, ROWS, Recipe
from tiny_tokenizer import prompt_text, response_text
from tiny_vision import CHAT_TEMPLATE, IMAGE, VISION_END, VISION_START
from web_lessons import GRID, on_grid

GOALS = ("Focus into the 2nd input textbox.", 'Click on a "radio" widget.', 'Click on the "Ok" button.')


@pytest.fixture(scope="module")
def tokenizer():
    return teach_vision_model.make_tokenizer(GOALS)


@pytest.fixture(scope="module")
def model(tokenizer):
    return teach_vision_model.new_model(Recipe(seed=0), tokenizer).eval()


def test_a_click_is_three_tokens_and_the_end_of_the_turn(tokenizer):
    for place in range(0, 1001, GRID):
        tokens = tokenizer.encode(response_text(f"click {place} {1000 - place}")).tokens
        assert tokens == ["click", f"Ġ{place}", f"Ġ{1000 - place}", "<|im_end|>", "Ċ"]


@pytest.mark.parametrize("text", [*GOALS, "naïve 漢字 🙂\t\r\n\n  x12", "Goal: 1234 5", ""])
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_teaching_speaks_the_chat_templates_format(tokenizer):
    import jinja2

    look = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Goal: a"}]}
    answer = {"role": "assistant", "content": "click 20 40"}
    more = {"role": "user", "content": "Goal: b"}
    template = jinja2.Environment().from_string(CHAT_TEMPLATE)
    whole = template.render(messages=[look, answer, more], add_generation_prompt=True)
    pieces = (
        prompt_text(f"{VISION_START}{IMAGE}{VISION_END}{teach_vision_model.user_text('a')}"),
        response_text("click 20 40"),
        prompt_text(teach_vision_model.user_text("b")),
    )
    assert "".join(pieces) == whole
    assert [token for piece in pieces for token in tokenizer.encode(piece).ids] == tokenizer.encode(whole).ids


@pytest.mark.parametrize(
    ("action", "moved"), [("click 213 767", "click 220 760"), ("click 1000 0", "click 1000 0")]
)
def test_a_click_on_the_grid_is_the_nearest_and_a_valid_action(action, moved):
    assert on_grid(action) == moved
    assert read_action(moved).name == "click"


def test_an_action_other_than_a_click_is_no_lesson():
    with pytest.raises(ValueError, match="is no click"):
        on_grid("type hello")


def test_a_teachers_hand_trembles_below_its_aim_and_stays_on_the_page():
    recipe, chance = Recipe(seed=0), random.Random(0)
    assert teach_vision_model.hand(recipe, lambda: 0.0)((500, 400)) == (500, 480)
    trembling = teach_vision_model.hand(recipe, lambda: chance.gauss(0, recipe.tremor))
    clicks = [trembling((20, 900)) for _ in range(2000)]
    assert all(0 <= place <= 1000 and place % GRID == 0 for click in clicks for place in click)
    assert 0.03 < sum(y < 950 for _, y in clicks) / len(clicks) < 0.3  # half a button's height


def test_the_model_has_at_most_three_million_parameters_and_an_untied_head(model):
    assert sum(p.numel() for p in model.parameters()) <= 3_000_000
    assert model.lm_head.weight is not model.model.language_model.embed_tokens.weight


def test_the_configuration_says_that_the_model_generates(model):
    """Otherwise vLLM serves the folder as an embedding model, without a route for chats."""
    assert model.config.architectures == ["Qwen3VLForConditionalGeneration"]


def test_the_reader_computes_what_transformers_computes(model, tokenizer):
    torch.manual_seed(0)
    look = f"{VISION_START}{IMAGE * IMAGE_TOKENS}{VISION_END}"
    turns = [prompt_text(look + GOALS[0]), response_text("click 20 40"), prompt_text(GOALS[1])]
    token_ids = torch.tensor([tokenizer.encode("".join(turns)).ids] * 2)
    patches = torch.randint(0, 256, (2, ROWS * COLUMNS, 3 * PATCH**2), dtype=torch.uint8)
    frames = (patches.float() / 127.5 - 1).view(2, ROWS * COLUMNS, 3, 1, -1).expand(-1, -1, -1, 2, -1)
    with torch.no_grad():
        ours = teach_vision_model.Reader(model, tokenizer).logits(patches, token_ids)
        theirs = model(
            input_ids=token_ids,
            pixel_values=frames.reshape(2 * ROWS * COLUMNS, -1),
            image_grid_thw=torch.tensor([[1, ROWS, COLUMNS]] * 2),
            mm_token_type_ids=(token_ids == tokenizer.token_to_id(IMAGE)).int(),
        ).logits
    assert theirs.std() > 0.1
    assert (ours - theirs).abs().max() < 1e-5


def test_orthogonal_updates_have_singular_values_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(teach_vision_model._orthogonal(torch.randn(3, 24, 64)))
    assert values.min() > 0.5 and values.max() < 1.3
