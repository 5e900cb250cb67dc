"""Plays Gymnasium's toy_text games over many turns, with the state shown as text or as a picture.

A task names the game as `env_id` (`FrozenLake-v1`, `Taxi-v4`, `CliffWalking-v1`, `Blackjack-v1`, …), and may
give its constructor's `env_kwargs` and a `seed`. With a seed every attempt begins in the same state; without,
the seed of the attempt decides.
"""

import asyncio
import os
import re
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_agent.env.answer import final_answer
from rl_agent.errors import EnvironmentRefusal
from rl_agent.system.off_loop import off_loop
from rl_agent.types import Observation, StepResult, Task

_HIGHLIGHT = re.compile(r"\x1b\[4\d(?:;1)?m(.)\x1b\[0m")
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")


def _show_map(game: Any, _state: Any) -> str:
    """Return Gymnasium's own drawing without the name of the last action, the agent's cell in brackets."""
    drawing = _HIGHLIGHT.sub(r"[\1]", game.render())
    rows = [row for row in _ESCAPE.sub("", drawing).splitlines() if not row.startswith("  (")]
    return "\n".join(rows).strip("\n")


def _show_taxi(game: Any, state: Any) -> str:
    row, column, passenger, destination = (int(number) for number in game.unwrapped.decode(state))
    places = ("R", "G", "Y", "B")
    where = f"waits at {places[passenger]}" if passenger < len(places) else "is in the taxi"
    return (
        f"{_show_map(game, state)}\n"
        f"The taxi is in row {row}, column {column} (from 0). The passenger {where} and wants to go to"
        f" {places[destination]}."
    )


def _show_cards(_game: Any, state: Any) -> str:
    hand, dealer, has_usable_ace = state
    ace = " with a usable ace" if has_usable_ace else ""
    return f"Your hand sums to {hand}{ace}. The dealer shows {dealer}."


@dataclass(frozen=True, slots=True)
class Game:
    """The words for one of the games."""

    actions: tuple[str, ...]
    """The word for each action, in gymnasium's order."""
    show: Callable[[Any, Any], str]
    render_mode: str | None = "ansi"
    pays_at_the_goal: bool = True
    """False if every ending is the goal, whatever its reward."""


_FROZEN_LAKE = Game(("left", "down", "right", "up"), _show_map)
_CLIFF_WALKING = Game(("up", "right", "down", "left"), _show_map, pays_at_the_goal=False)
GAMES = {
    "FrozenLake": _FROZEN_LAKE,
    "FrozenLake8x8": _FROZEN_LAKE,
    "CliffWalking": _CLIFF_WALKING,
    "CliffWalkingSlippery": _CLIFF_WALKING,
    "Taxi": Game(("south", "north", "east", "west", "pickup", "dropoff"), _show_taxi),
    "Blackjack": Game(("stick", "hit"), _show_cards, render_mode=None),
}


class GymnasiumEnvironment:
    """A multi-turn game: a response names one action, else the legal actions are listed again.

    With `reward` "success" the step that reaches the goal has reward 1 and others 0; with "gymnasium" the
    library's rewards are used. With `view` "image" the state is shown only as gymnasium's own picture.
    """

    is_cooperative = True

    def __init__(
        self,
        *,
        reward: Literal["success", "gymnasium"] = "success",
        view: Literal["text", "image"] = "text",
    ) -> None:
        if reward not in ("success", "gymnasium"):
            raise ValueError(f"reward is {reward!r}; use success or gymnasium")
        if view not in ("text", "image"):
            raise ValueError(f"view is {view!r}; use text or image")
        self._is_success_reward = reward == "success"
        self._pictures = _Pictures() if view == "image" else None
        self._env: Any = None
        self._game = _FROZEN_LAKE
        self._state: Any = None

    @staticmethod
    def check_task(task: Task) -> None:
        """Raises ValueError that says what the task lacks."""
        env_id = task.extra.get("env_id")
        if not isinstance(env_id, str) or not re.fullmatch(rf"({'|'.join(GAMES)})-v\d+", env_id):
            raise ValueError(f"env_id is {env_id!r}; use one of {', '.join(GAMES)} with its version (-v1)")
        if not isinstance(task.extra.get("env_kwargs", {}), dict):
            raise ValueError("env_kwargs is not an object")
        seed = task.extra.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise ValueError("seed is not a whole number from 0")

    async def reset(self, task: Task, seed: int) -> Observation:
        try:
            self.check_task(task)
        except ValueError as error:
            raise EnvironmentRefusal(f"task {task.task_id}: {error}") from None
        env_id: str = task.extra["env_id"]
        self._game = GAMES[env_id.partition("-v")[0]]
        await self.close()
        # In a thread: Taxi computes a table of all its states first, and the first import is slow.
        render_mode = "rgb_array" if self._pictures else self._game.render_mode
        self._env = await asyncio.to_thread(_make, env_id, render_mode, task.extra.get("env_kwargs", {}))
        self._state, _ = self._env.reset(seed=task.extra.get("seed", seed))
        shown = await self._shown()
        words = (task.prompt, shown.text, self._legal())
        return Observation("\n\n".join(filter(None, words)), shown.images)

    async def step(self, action: str) -> StepResult:
        number = await off_loop(len(action), _number_of, action, self._game.actions)
        if number is None:
            return StepResult(Observation(f"That is not one action. {self._legal()}"), changed=False)
        before = self._state
        self._state, paid, is_over, is_out_of_time, _ = self._env.step(number)
        shown = await self._shown()
        is_solved = is_over and (paid > 0 or not self._game.pays_at_the_goal)
        if is_over or is_out_of_time:
            self._end_game()
        return StepResult(
            shown,
            reward=float(is_solved if self._is_success_reward else paid),
            done=bool(is_over),
            truncated=bool(is_out_of_time and not is_over),
            changed=bool(is_over or before != self._state),
        )

    async def close(self) -> None:
        self._end_game()
        if self._pictures:
            await asyncio.to_thread(self._pictures.delete)

    def _end_game(self) -> None:
        if self._env is not None:
            env, self._env = self._env, None
            env.close()

    async def _shown(self) -> Observation:
        if self._pictures is None:
            return Observation(self._game.show(self._env, self._state))
        path = await asyncio.to_thread(self._pictures.draw, self._env)
        return Observation("", (str(path),))

    def _legal(self) -> str:
        return f"Answer with one of: {', '.join(self._game.actions)}."


class _Pictures:
    """The pictures of one instance, in a temporary folder until it is closed."""

    _drawing = threading.Lock()
    """Held while drawing: Pygame, which gymnasium uses, is not thread-safe."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def draw(self, env: Any) -> Path:
        from PIL import Image

        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="gymnasium-")
        with self._drawing:
            pixels = env.render()
        self._count += 1
        path = Path(self._folder.name) / f"{self._count}.png"
        Image.fromarray(pixels).save(path)
        return path

    def delete(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _make(env_id: str, render_mode: str | None, kwargs: dict[str, Any]) -> Any:
    import gymnasium

    if render_mode == "rgb_array":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws in memory; it need not seek a screen
    return gymnasium.make(env_id, render_mode=render_mode, disable_env_checker=True, **kwargs)


def _number_of(action: str, words: tuple[str, ...]) -> int | None:
    """Return the action that the response names, if it names exactly one."""
    spoken = set(re.findall(r"[a-z]+", final_answer(action).lower()))
    named = [number for number, word in enumerate(words) if word in spoken]
    return named[0] if len(named) == 1 else None
