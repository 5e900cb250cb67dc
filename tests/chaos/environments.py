"""Rollouts whose workers, servers and browsers are killed and frozen, one seed a run.

    python -m tests.chaos.environments [--runs 200] [--seed 0]

Each run: real episodes of a collector, whose agent draws its actions. A third of the runs each:

- workers: environments that answer, raise, crash their process, block its event loop, start children that
  leave their process group, or return nonsense, in two worker processes;
- servers: the same on two environment servers with a worker each;
- web: MiniWoB tasks and pages that open dialogs without end, fill the memory, close the agent's own tab, lead
  to files of the machine or download, in browsers of one worker.

Meanwhile processes of all kinds, guards included, are killed (SIGKILL) and frozen (SIGSTOP, servers for a
while), and servers come back. Whatever happened: every episode ended and is recorded once (submitted =
ended), every attempt before the last has its reason, no process and no temporary folder is left, nor anything
of a browser in /dev/shm, and a file of the machine, of one colour and with one word in it, is in no picture
and no trajectory.
"""

# ruff: noqa: ASYNC240 - nothing else runs here

import argparse
import asyncio
import collections
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from PIL import Image

from rl_agent.env.guard import descendants
from rl_agent.env.remote.placement import WorkerLimits
from rl_agent.env.remote.server_link import LinkSettings
from rl_agent.env.remote.server_pool import open_servers
from rl_agent.env.remote.worker import WorkerSetup
from rl_agent.env.remote.worker_pool import open_workers
from rl_agent.env.web.environment import WebEnvironment
from rl_agent.system.processes import MARK, GroupRecord, ProcessId, command_line, members
from rl_agent.types import EpisodeKey, EpisodeSpec, Generation, Status, Task
from tests.support.ports import quiet_port
from tests.unit.env.remote.pools import KINDS
from tests.unit.rollout.collecting import FakeSource, FakeWriter, make_collector
from tests.unit.rollout.episodes import FakeEngine, make_setup

STEPS, ATTEMPTS = 4, 3
TIMEOUT_S = 2.0
RUN_LIMIT_S = 240.0
PLACES = ("workers", "servers", "web")
EPISODES = {"workers": 24, "servers": 24, "web": 8}
ACTIONS = ("look",) * 12 + ("done",) * 5 + ("wait 0.1", "raise oh", "lie", "child", "detached", "picture x")
BAD_ACTIONS = ("exit 3", "block 20", "leave")
SECRET_COLOUR, SECRET_WORD = (255, 0, 165), "Quetzalcoatlus"
SECRET = f"<body style='background: rgb{SECRET_COLOUR}'>{SECRET_WORD}"
PAGES = (
    *("calm", "alerts", "loop", "close-itself", "closes-at-once", "tabs", "file", "to-file", "frame-file"),
    *("download", "upload", "crash", "large", "unload"),
)
MINIWOB = ("click-button", "enter-text", "login-user")
HOSTILE = str(Path(__file__).parents[1] / "integration" / "web" / "hostile_site")
WEB = {"width": 320, "height": 240, "sites": {"hostile": HOSTILE}, "max_page_mib": 256}
WEB_LIMITS = {"action_timeout_s": 3.0, "load_timeout_s": 6.0}
ROLES = {
    "env-server": "server",
    "guard.py": "guard",
    "remote.worker": "worker",
    "run-driver": "driver",
    "--type=renderer": "page",
    "--type=": "part of a browser",
    "--user-data-dir": "browser",
}


class DrawnEngine(FakeEngine):
    """An agent that draws its actions from the seed of each request."""

    def __init__(self, actions, share_bad):
        super().__init__()
        self._actions = actions
        self._share_bad = share_bad

    async def generate(self, prompt_token_ids, sampling, *, request_id, decode):
        drawn = random.Random(sampling.seed)
        actions = BAD_ACTIONS if drawn.random() < self._share_bad else self._actions
        await asyncio.sleep(drawn.random() * 0.05)
        return Generation((1, 2), (-0.1, -0.1), drawn.choice(actions), "stop", 1, 1)

    async def generate_chat(self, messages, sampling, *, request_id, chat_template_kwargs, decode, tools=()):
        return (7, 8, 9), await self.generate((), sampling, request_id=request_id, decode=decode)


class Server:
    """A real environment server of this machine, started again at the same port."""

    def __init__(self):
        self.port = quiet_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        kinds = [f"+kinds.{kind}={dotted}" for kind, dotted in KINDS.items()]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "rl_agent.cli", "env-server", "--listen", f"127.0.0.1:{self.port}"),
                *("--workers", "1", "--places", "8", "--drain-s", "1", "--client-timeout-s", "10"),
                *(*kinds, f"worker_timeout_s={TIMEOUT_S}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()


def spec_of(place, index, seed, secret):
    kind, extra = "obeying", {}
    if place == "web":
        pages = {"site": "hostile", "page": PAGES[(seed + index) % len(PAGES)], "secret": str(secret)}
        kind, extra = "web", pages if index % 3 else {"miniwob": MINIWOB[seed % len(MINIWOB)]}
    task = Task(f"task-{index}", "go", kind, "easy", extra=extra)
    return EpisodeSpec(EpisodeKey(task.task_id, 0, 0), task, max_steps=STEPS, seed=seed * 1000 + index)


async def disturb(draw, servers, victims, pauses, has_begun):
    """Kill and freeze, until cancelled."""
    # Workers of which none ever starts are no fault to live with.
    while not has_begun():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    while True:
        await asyncio.sleep(draw.uniform(*pauses))
        if servers and draw.random() < 0.3:
            server = draw.choice(servers)
            if draw.random() < 0.5:
                victims["server", "killed"] += 1
                server.kill()
                await asyncio.sleep(draw.uniform(0.1, 1.0))
                server.start()
            else:
                victims["server", "frozen"] += 1
                server.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(draw.uniform(0.5, 2 * TIMEOUT_S))
                server.process.send_signal(signal.SIGCONT)
            continue
        by_role = collections.defaultdict(list)
        for pid in set(descendants(os.getpid())) - {server.process.pid for server in servers}:
            by_role[role_of(pid)].append(pid)
        if by_role:
            role = draw.choice(sorted(by_role))  # else most victims were parts of browsers
            number = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
            with suppress(ProcessLookupError):
                os.kill(draw.choice(by_role[role]), number)
                victims[role, "frozen" if number == signal.SIGSTOP else "killed"] += 1


def role_of(pid):
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return "other"
    return next((role for word, role in ROLES.items() if word in words), "other")


async def play(seed, secret, pictures, victims):
    """Run one seed; returns what became of its episodes."""
    draw = random.Random(seed)
    place = PLACES[seed % len(PLACES)]
    count = EPISODES[place]
    mark = os.environ[MARK] = uuid.uuid4().hex
    servers = [Server(), Server()] if place == "servers" else []
    lived = set()
    writer = FakeWriter()
    actions, kinds, timeout_s, pauses, kwargs = ACTIONS, KINDS, TIMEOUT_S, (0.3, 1.5), {}
    if place == "web":
        kwargs, pauses = {"web": WEB | WEB_LIMITS}, (2.0, 8.0)  # a browser takes seconds to start
        kinds, timeout_s = {"web": "rl_agent.env.web.environment:WebEnvironment"}, 2 * TIMEOUT_S
        files = (f"goto file://{secret}", "goto view-source:http://hostile.test/", "goto http://127.0.0.1/")
        actions = ("click 500 500",) * 8 + ("type x", "scroll down", "back", "key Control+o", *files)
    try:
        async with AsyncExitStack() as stack:
            if servers:
                urls = tuple(server.url for server in servers)
                link = LinkSettings(None, None, TIMEOUT_S)
                pool = await stack.enter_async_context(
                    open_servers(urls, link, wait_s=120.0, spool_bytes=2**20)
                )
                has_begun = lambda: True  # noqa: E731
            else:
                limits = WorkerLimits(1 if place == "web" else 2, timeout_s, 10, 20.0, 4000.0)
                pool = await stack.enter_async_context(
                    open_workers(WorkerSetup(kinds, (), 8, kwargs), limits)
                )
                has_begun = lambda: pool._has_started  # noqa: E731
            setup = make_setup(
                None,
                DrawnEngine(actions, 0.0 if place == "web" else 0.02),
                create_environment=lambda kind, crashes: pool.create(kind, crashes),
                attempts=ATTEMPTS,
                images=pictures if place == "web" else None,
                step_timeout_s=30.0 if place == "web" else 10.0,
                episode_timeout_s=60.0,
            )
            collector = make_collector(
                None,
                writer,
                setup=setup,
                server_size=4 if place == "web" else 12,
                left=lambda indices: [spec_of(place, index, seed, secret) for index in indices],
            )
            collector._whole = lambda: count
            async with asyncio.TaskGroup() as jobs:
                disturbing = jobs.create_task(disturb(draw, servers, victims, pauses, has_begun))
                watching = jobs.create_task(note_processes(lived))
                async with asyncio.timeout(RUN_LIMIT_S):
                    await collector.collect(FakeSource(count, size=count))
                disturbing.cancel()
                watching.cancel()
    finally:
        for server in servers:
            server.end()
    check(count, writer.trajectories)
    check_nothing_is_left(lived, mark)
    check_pictures(pictures, writer.trajectories)
    return writer.trajectories


async def note_processes(lived):
    while True:
        lived |= {ProcessId.of(pid) for pid in descendants(os.getpid())}
        await asyncio.sleep(0.05)


def check(count, trajectories):
    keys = collections.Counter(str(trajectory.key) for trajectory in trajectories)
    assert len(keys) == count, f"{count - len(keys)} episodes are lost"
    assert set(keys.values()) == {1}, "an episode was recorded twice"
    for trajectory in trajectories:
        reasons = [lost.failure.message for lost in trajectory.lost_attempts]
        assert all(reasons), "an attempt without its reason"
        assert len(reasons) < ATTEMPTS
        assert (trajectory.failure is None) == (trajectory.status is Status.COMPLETED)


def check_nothing_is_left(lived, mark):
    deadline = time.monotonic() + 15
    started_here = GroupRecord("chaos", Path(), ProcessId(0, 0), mark)
    while left := {process.pid for process in lived if process.is_running} | set(members(started_here)):
        assert time.monotonic() < deadline, f"left: {[f'{pid} {command_line(pid)}' for pid in left]}"
        time.sleep(0.05)
    while left := [*Path(tempfile.gettempdir()).iterdir(), *Path("/dev/shm").glob(".org.chromium*")]:
        assert time.monotonic() < deadline, f"left: {[str(path) for path in left]}"
        time.sleep(0.05)


def check_pictures(pictures, trajectories):
    assert SECRET_WORD not in repr(trajectories), "a trajectory has a file of this machine"
    for path in pictures.rglob("*.png"):
        assert not shows_secret(path.read_bytes()), f"a picture has a file of this machine: {path}"


def shows_secret(content):
    with Image.open(io.BytesIO(content)) as picture:
        colours = picture.convert("RGB").getcolors(2**24)
    return any(colour == SECRET_COLOUR for _, colour in colours)


async def check_that_a_secret_would_be_seen():
    """The same file, shown by a page that may, is found in its picture."""
    environment = WebEnvironment(**WEB)
    task = Task("shown", "", "web", "easy", extra={"site": "hostile", "page": "secret"})
    try:
        shown = await environment.reset(task, 0)
        assert not shows_secret(Path(shown.images[0]).read_bytes())
        await environment.query("html => document.write(html)", SECRET)
        shown = (await environment.step("wait 0.2")).observation
        assert shows_secret(Path(shown.images[0]).read_bytes())
    finally:
        await environment.close()
        await WebEnvironment.close_shared()


def print_table(rows, victims):
    print("            seeds  episodes  completed  lost attempts  pictures  s a seed")
    for place, row in rows.items():
        numbers = (
            f"{row['seeds']:7}{row['episodes']:10}{row['completed']:11}{row['lost']:15}{row['pictures']:10}"
        )
        print(f"{place:10}{numbers}{row['seconds'] / row['seeds']:10.0f}")
    for how in ("killed", "frozen"):
        roles = sorted((role, n) for (role, what), n in victims.items() if what == how)
        print(f"{how}: {', '.join(f'{role} {n}' for role, n in roles)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(check_that_a_secret_would_be_seen())
    rows = collections.defaultdict(collections.Counter)
    victims, broken = collections.Counter(), []
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder, secret, pictures = Path(name) / "tmp", Path(name) / "secret.html", Path(name) / "pictures"
        secret.write_text(SECRET)
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        for seed in range(options.seed, options.seed + options.runs):
            began = time.monotonic()
            folder.mkdir()
            try:
                trajectories = asyncio.run(play(seed, secret, pictures, victims))
            except Exception as error:
                broken.append(seed)
                print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
                trajectories = []
            seconds = time.monotonic() - began
            place = PLACES[seed % len(PLACES)]
            counts = {
                "seeds": 1,
                "episodes": len(trajectories),
                "completed": sum(episode.status is Status.COMPLETED for episode in trajectories),
                "lost": sum(len(episode.lost_attempts) for episode in trajectories),
                "pictures": len(list(pictures.rglob("*.png"))),
                "seconds": seconds,
            }
            rows[place].update(counts)
            print(f"seed {seed} ({place}): {counts}", flush=True)
            for used in (folder, pictures):
                shutil.rmtree(used, ignore_errors=True)
    print_table(rows, victims)
    print(f"broken: {broken or 'none'}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
