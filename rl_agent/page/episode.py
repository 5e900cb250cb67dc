"""One episode as the page draws it: every turn as the model saw it. Values for the template."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_agent.env.web.actions import MAX_COORDINATE, InvalidAction, read_action
from rl_agent.errors import StoreError
from rl_agent.page.tokens import DrawnToken, Palette, TokenWords
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.browse import seen_in_words
from rl_agent.rollout.trajectories.images import image_size
from rl_agent.rollout.trajectories.line import TRAJECTORY, parse_line
from rl_agent.rollout.trajectories.manifest import Part
from rl_agent.types import Step, Trajectory

TURNS_A_PAGE = 50
MAX_SHOWN_CHARACTERS = 100_000
IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp"}
_DIGEST = re.compile(r"[0-9a-f]{64}")
RADIUS_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Mark:
    """The place of a click, in pixels of the screenshot; with an end for a drag."""

    x: float
    y: float
    radius: float
    to: tuple[float, float] | None
    words: str


@dataclass(frozen=True, slots=True)
class Screenshot:
    """An image that the model saw."""

    address: str
    """Its path below the run's images."""
    width: int
    height: int
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class DrawnTurn:
    """One turn: what came, what the model said, what became of it."""

    number: int
    step: Step
    shots: tuple[Screenshot, ...]
    gone: int
    """Images that are recorded, and not there any more."""
    context: str
    earlier: tuple[str, ...]
    """Say in words which earlier turns the model still saw."""
    context_shots: tuple[Screenshot, ...]
    """Images of earlier turns that were in its context."""
    call: tuple[str, dict[str, str]] | None
    """Name and arguments, if the action is a tool call."""
    tokens: tuple[DrawnToken, ...] = ()
    tokens_from: int = 0
    """Index of the first token that is drawn."""
    prompt: str = ""
    """The text of its prompt's new tokens; empty where no tokens are shown."""

    @property
    def tokens_after(self) -> int:
        """Tokens of the response behind those that are drawn."""
        return len(self.step.generation.token_ids) - self.tokens_from - len(self.tokens)


@dataclass(frozen=True, slots=True)
class DrawnEpisode:
    """An episode with its turns of one page."""

    trajectory: Trajectory
    turns: tuple[DrawnTurn, ...]
    first: int
    pages: tuple[tuple[int, int], ...] = ()
    """First and last turn of each page, if there are several."""
    colouring: str = ""
    """A legend for the colours of tokens; empty where no tokens are shown."""
    legend: Sequence[tuple[str, str]] = ()
    verdict: dict[str, Any] = field(default_factory=dict)


def read_episode(paths: RunPaths, split: str, file: str, begin: int, size: int) -> Trajectory:
    """Read the line of an episode from the store. Raises StoreError if it is not there any more."""
    path = Part(paths.log_path / f"{split}_trajectories" / Path(file).name).path
    try:
        with path.open("rb") as lines:
            lines.seek(begin)
            line = lines.read(size)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_line(TRAJECTORY, path, f"byte {begin}", line)


def drawn(
    trajectory: Trajectory,
    images: Path,
    words: TokenWords,
    *,
    turn: int,
    palette: Palette | None,
    tokens_from: int = 0,
) -> DrawnEpisode:
    """Return what the page shows of an episode: the stretch of turns around `turn`.

    The tokens of `turn` itself are drawn from `tokens_from` on, those of the others from their first.
    """
    steps = trajectory.steps
    first = max(0, min(turn, len(steps) - 1)) // TURNS_A_PAGE * TURNS_A_PAGE
    turns = tuple(
        _turn(number, steps, images, words, palette, tokens_from if number == turn else 0)
        for number in range(first, min(first + TURNS_A_PAGE, len(steps)))
    )
    starts = range(0, len(steps), TURNS_A_PAGE)
    pages = tuple((start, min(start + TURNS_A_PAGE, len(steps)) - 1) for start in starts)
    verdict = trajectory.reward_detail if "verdict" in trajectory.reward_detail else {}
    return DrawnEpisode(
        trajectory,
        turns,
        first,
        pages if len(pages) > 1 else (),
        palette.colouring if palette else "",
        palette.legend if palette else (),
        verdict,
    )


def _turn(
    number: int,
    steps: Sequence[Step],
    images: Path,
    words: TokenWords,
    palette: Palette | None,
    tokens_from: int,
) -> DrawnTurn:
    step = steps[number]
    if tokens_from >= len(step.generation.token_ids):
        tokens_from = 0
    own = [address_of(path, images) for path in step.observation.images]
    paths = {Path(path).stem: path for earlier in steps[:number] for path in earlier.observation.images}
    own_digests = {Path(path).stem for path in step.observation.images}
    before = [paths[digest] for digest in step.seen.images if digest in paths and digest not in own_digests]
    addresses = [address for path in before if (address := address_of(path, images)) is not None]
    return DrawnTurn(
        number=number,
        step=step,
        shots=tuple(_screenshot(address, images, step.action) for address in own if address is not None),
        gone=own.count(None),
        context=seen_in_words(step),
        earlier=tuple(_earlier(number, step)),
        context_shots=tuple(_screenshot(address, images, "") for address in addresses),
        call=_call(step.action),
        tokens=words.drawn(step.generation, palette, tokens_from) if palette else (),
        tokens_from=tokens_from,
        prompt=words.text(step.prompt_token_ids) if palette else "",
    )


def _earlier(number: int, step: Step) -> list[str]:
    """Say turn by turn what the window kept; nothing where it kept everything."""
    whole, lines = min(step.seen.whole_from, number), step.seen.as_lines
    if not whole:
        return []
    gone = max(0, whole - lines)
    parts = [("left out", 0, gone), ("as one line each", gone, whole), ("whole", whole, number)]
    return [f"{_turns(begin, end)} {what}" for what, begin, end in parts if end > begin]


def _turns(begin: int, end: int) -> str:
    return f"turn {begin}" if end - begin == 1 else f"turns {begin} to {end - 1}"


def _screenshot(address: str, images: Path, action: str) -> Screenshot:
    width, height = image_size(str(images / address)) or (0, 0)
    return Screenshot(address, width, height, _mark(action, width, height) if action and width else None)


def _mark(action: str, width: int, height: int) -> Mark | None:
    """Return where an action points to on the screenshot that it answers; None if it points nowhere."""
    try:
        done = read_action(action)
    except InvalidAction:
        return None
    if done.at is None:
        return None
    scale_x, scale_y = width / MAX_COORDINATE, height / MAX_COORDINATE
    end = None if done.to is None else (round(done.to[0] * scale_x, 1), round(done.to[1] * scale_y, 1))
    words = f"{done.name} at {done.at[0]:g}, {done.at[1]:g} of {MAX_COORDINATE}"
    radius = round(max(8.0, RADIUS_SHARE * max(width, height)), 1)
    return Mark(round(done.at[0] * scale_x, 1), round(done.at[1] * scale_y, 1), radius, end, words)


def _call(action: str) -> tuple[str, dict[str, str]] | None:
    if not action.lstrip().startswith("{"):
        return None
    try:
        call = json.loads(action)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    return call["name"], {
        str(name): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
        for name, value in arguments.items()
    }


def address_of(recorded: str, images: Path) -> str | None:
    """Return the path of a recorded image below the run's folder of images; None if it is not there.

    What a line names may lie anywhere; only what is in that folder, links followed, is ever shown.
    """
    parts = Path(recorded).parts
    tails = [parts[at + 1 :] for at, part in enumerate(parts) if part == images.name]
    for tail in tails:
        if tail and image_file(images, "/".join(tail)) is not None:
            return "/".join(tail)
    return None


def image_file(images: Path, address: str) -> Path | None:
    """Return the file at a path below the folder of images; None for everything else."""
    try:
        root = images.resolve()
        path = (root / address).resolve()
        is_image = path.is_relative_to(root) and path.suffix in IMAGE_TYPES and path.is_file()
    except (OSError, ValueError, RuntimeError):
        return None
    return path if is_image else None
