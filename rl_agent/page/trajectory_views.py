"""The views of trajectories: the list with its filter, tasks, siblings, an episode by turns, images, export.

An episode's address holds its key, so that a link to a turn stays right when the index is made anew.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from aiohttp import web

from rl_agent.config.sections.grpo import LossSettings
from rl_agent.errors import StoreError
from rl_agent.page import episode, search
from rl_agent.page.guard import IMAGE_POLICY
from rl_agent.page.run_folder import RunFolder, value_at
from rl_agent.page.shown import PageRenderer, ShownRun
from rl_agent.page.tokens import COLOURINGS, Palette, TokenWords, words_in
from rl_agent.page.training_sample import DrawnSample, drawn_sample
from rl_agent.rollout.trajectories.images import is_as_seen
from rl_agent.rollout.trajectories.line import to_json
from rl_agent.types import Trajectory

_VERSION = re.compile(r"version-[0-9]{1,12}")
MAX_SIBLINGS = 64
EXPORT_LINES = 64
EXPORT_BYTES = 16 * 2**20
"""The bytes that are read ahead of the reader."""
SAMPLE = "sample"
"""Asks for the training sample, where `COLOURINGS` ask for the colours of a response's tokens."""
NOT_THERE = "this episode is not recorded here"


class NotIndexed(Exception):
    """The index does not have an episode, or not yet."""


class TrajectoryViews:
    """The handlers below `/runs/RUN/`; `page` finds runs and renders."""

    def __init__(self, page: PageRenderer) -> None:
        self._page = page

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/runs/{run}/episodes", self.episodes),
            web.get("/runs/{run}/tasks", self.tasks),
            web.get("/runs/{run}/episode", self.episode),
            web.get("/runs/{run}/group", self.group),
            web.get("/runs/{run}/export", self.export),
            web.get("/runs/{run}/images/{address:.+}", self.image),
        ]

    async def episodes(self, request: web.Request) -> web.StreamResponse:
        run = self._page.run_of(request)
        run.index.wake()
        query, page = search.read_query(request.query), _whole(request.query, "page", 1)
        return await self._page.rendered(
            request,
            "episodes.html",
            lambda: {
                "query": query,
                "found": search.search(run.index, query, page),
                "progress": run.index.progress,
                "choices": search.choices(run.index),
                "orders": list(search.ORDERS),
                "statuses": search.STATUSES,
            },
            run,
        )

    async def tasks(self, request: web.Request) -> web.StreamResponse:
        run = self._page.run_of(request)
        run.index.wake()

        def values() -> dict[str, Any]:
            threshold = _trainer(run.folder).get("reward_threshold")
            threshold = float(threshold) if isinstance(threshold, int | float) else 1.0
            return {
                "threshold": threshold,
                "iterations": search.RECENT_ITERATIONS,
                "limit": search.MAX_TASKS,
                "worst": search.worst_tasks(run.index, threshold),
                "flips": search.flips(run.index, threshold),
                "progress": run.index.progress,
            }

        return await self._page.rendered(request, "tasks.html", values, run)

    async def group(self, request: web.Request) -> web.StreamResponse:
        run = self._page.run_of(request)
        run.index.wake()
        split, iteration, task, group, _ = _key(request.query)

        def values() -> dict[str, Any]:
            rows = search.group_rows(run.index, split, iteration, task, group)
            if not rows:
                raise NotIndexed
            siblings = [(row, self._read(run, row)) for row in rows[:MAX_SIBLINGS]]
            return {
                "siblings": siblings,
                "task": next((entry.task for _, entry in siblings if isinstance(entry, Trajectory)), None),
                "split": split,
                "iteration": iteration,
                "task_id": task,
                "group": group,
                "left_out": len(rows) - len(siblings),
            }

        return await self._once_indexed(request, "group.html", values, run)

    async def episode(self, request: web.Request) -> web.StreamResponse:
        run = self._page.run_of(request)
        run.index.wake()
        split, iteration, task, group, attempt = _key(request.query)
        turn, colouring = _whole(request.query, "turn", 0), _colouring(request.query)
        tokens_from = _whole(request.query, "from", 0)

        def values() -> dict[str, Any]:
            rows = search.group_rows(run.index, split, iteration, task, group)
            place = next((n for n, row in enumerate(rows) if row["attempt"] == attempt), None)
            if place is None:
                raise NotIndexed
            trajectory = self._read(run, rows[place])
            if isinstance(trajectory, str):
                raise web.HTTPNotFound(text=trajectory)
            words = self._words(run.folder, trajectory) if colouring else TokenWords(None)
            palette = Palette(colouring, run.pool.engine_names()) if colouring else None
            images = run.folder.paths.images
            has_sample = split == "train" and _trainer(run.folder).get("kind") == "grpo"
            is_sample = has_sample and request.query.get("tokens") == SAMPLE
            return {
                "has_sample": has_sample,
                "sample": self._sample(run, rows, trajectory, turn, tokens_from) if is_sample else None,
                "drawn": episode.drawn(
                    trajectory, images, words, turn=turn, palette=palette, tokens_from=tokens_from
                ),
                "row": rows[place],
                "siblings": rows,
                "advantage": _advantage(rows, place),
                "before": rows[place - 1] if place else None,
                "after": rows[place + 1] if place + 1 < len(rows) else None,
                "limit": episode.MAX_SHOWN_CHARACTERS,
                "colourings": COLOURINGS,
            }

        return await self._once_indexed(request, "episode.html", values, run)

    def _sample(
        self,
        run: ShownRun,
        rows: Sequence[Mapping[str, Any]],
        trajectory: Trajectory,
        sequence: int,
        tokens_from: int,
    ) -> DrawnSample:
        """Return the training sample of an episode. Raises web.HTTPNotFound if a sibling cannot be read."""
        siblings = [self._read(run, row) for row in rows]
        if problems := [sibling for sibling in siblings if isinstance(sibling, str)]:
            raise web.HTTPNotFound(text=problems[0])
        return drawn_sample(
            [sibling for sibling in siblings if isinstance(sibling, Trajectory)],
            trajectory.key,
            LossSettings.model_validate(_trainer(run.folder).get("loss")),
            self._words(run.folder, trajectory),
            run.folder.paths.images,
            sequence=sequence,
            tokens_from=tokens_from,
        )

    async def _once_indexed(
        self, request: web.Request, template: str, values: Callable[[], Mapping[str, Any]], run: ShownRun
    ) -> web.StreamResponse:
        """Show a view, or how far the index is while it may still come upon what is asked for."""
        progress = run.index.progress
        try:
            return await self._page.rendered(request, template, values, run)
        except NotIndexed:
            if progress.is_up_to_date:
                raise web.HTTPNotFound(text=NOT_THERE) from None
        return await self._page.rendered(request, "waiting.html", lambda: {"progress": progress}, run)

    def _read(self, run: ShownRun, row: Mapping[str, Any]) -> Trajectory | str:
        """Return the episode of a row as the store has it, or why it cannot be read."""
        try:
            trajectory = episode.read_episode(
                run.folder.paths, row["split"], row["file"], row["begin"], row["size"]
            )
        except (StoreError, OSError) as error:
            return str(error)
        is_same = (trajectory.key.task_id, trajectory.key.group, trajectory.key.attempt) == (
            row["task_id"],
            row["group_index"],
            row["attempt"],
        )
        return (
            trajectory
            if is_same
            else f"{row['file']}: changed since it was indexed; look again in a few seconds"
        )

    def _words(self, run: RunFolder, trajectory: Trajectory) -> TokenWords:
        """Return the tokenizer of an episode: of its version, of the newest one, or of the base model."""
        folders = [run.paths.model_link]
        name = Path(trajectory.model).name
        if _VERSION.fullmatch(name):
            folders.insert(0, run.paths.checkpoints / name)
        base = value_at(run.plan(), "config", "model_config", "base_model")
        folders += [Path(base)] if isinstance(base, str) and base.startswith("/") else []
        return words_in(tuple(folders))

    async def export(self, request: web.Request) -> web.StreamResponse:
        """Send the episodes that fit as JSON lines, everything that was recorded."""
        run = self._page.run_of(request)
        run.index.wake()
        places = search.places_of(run.index, search.read_query(request.query))
        headers = {"Content-Disposition": 'attachment; filename="episodes.jsonl"'}
        answer = web.StreamResponse(headers=headers)
        answer.content_type = "application/x-ndjson"
        await answer.prepare(request)

        def next_lines() -> tuple[int, bytes]:
            lines: list[bytes] = []
            for split, file, begin, size in islice(places, EXPORT_LINES):
                try:
                    trajectory = episode.read_episode(run.folder.paths, split, file, begin, size)
                except (StoreError, OSError):  # it was collected anew meanwhile
                    lines.append(b"")
                else:
                    lines.append(to_json(trajectory) + b"\n")
                if sum(map(len, lines)) > EXPORT_BYTES:
                    break
            return len(lines), b"".join(lines)

        while (chunk := await asyncio.to_thread(next_lines))[0]:
            await answer.write(chunk[1])
        await answer.write_eof()
        return answer

    async def image(self, request: web.Request) -> web.StreamResponse:
        """Send a recorded image, if its content is what was seen."""
        run = self._page.run_of(request)
        image = await asyncio.to_thread(_image, run.folder.paths.images, request.match_info["address"])
        if image is None:
            raise web.HTTPNotFound(text="there is no such image, or it is not what was seen")
        content, kind = image
        headers = {"Content-Security-Policy": IMAGE_POLICY, "Cache-Control": "private, max-age=86400"}
        return web.Response(body=content, content_type=kind, headers=headers)


def _image(images: Path, address: str) -> tuple[bytes, str] | None:
    file = episode.image_file(images, address)
    try:
        if file is None or not is_as_seen(file):
            return None
        return file.read_bytes(), episode.IMAGE_TYPES[file.suffix]
    except OSError:
        return None


def _trainer(run: RunFolder) -> dict[str, Any]:
    """Return the trainer's section of the configuration; empty where there is none."""
    section = value_at(run.plan(), "config", "trainer")
    return section if isinstance(section, dict) else {}


def _advantage(rows: Sequence[Mapping[str, Any]], place: int) -> float | None:
    """Return the reward less the mean of the group; None without a reward or without a second one."""
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    own = rows[place]["reward"]
    return None if own is None or len(rewards) < 2 else float(own - sum(rewards) / len(rewards))


def _colouring(query: Mapping[str, str]) -> str:
    """Return what the colours of tokens shall say; empty where tokens are not asked for."""
    choice = query.get("tokens", "")
    return choice if choice in COLOURINGS else COLOURINGS[0] if choice == "1" else ""


def _whole(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else default


def _key(query: Mapping[str, str]) -> tuple[str, int, str, int, int]:
    """Return split, iteration, task, group and attempt of an address."""
    split = "test" if query.get("split") == "test" else "train"
    numbers = (_whole(query, name, 0) for name in ("iteration", "group", "attempt"))
    iteration, group, attempt = numbers
    return split, iteration, query.get("task", ""), group, attempt
