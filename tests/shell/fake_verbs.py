"""Stands in for the verbs that would need a model: a server, a rollout, an update.

Called as `fake_verbs.py VERB ARGUMENTS…`, or as `fake_verbs.py node`, the real node process with the verbs
below in place of their own. The variables FAKE_<VERB> say how they behave. Every call is noted in the file
named by FAKE_CALLS; the real verb's parser reads its flags first. A stand-in imports what it needs inside its
function: a run starts several, and most of their time would be imports.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rl_agent.cli.__main__ import call as real_call
from rl_agent.cli.__main__ import module_of
from rl_agent.cli._result import VerbResult
from rl_agent.config.plan import Plan
from rl_agent.errors import RetryLater, UsageError
from rl_agent.paths import PROJECT_ROOT
from rl_agent.system.files import write_whole

if TYPE_CHECKING:
    from rl_agent.cluster.member.member import Member
    from rl_agent.rollout.loop import RolloutLoop


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def behaviour(verb: str) -> str:
    return os.environ.get("FAKE_" + verb.upper().replace("-", "_"), "")


def note(*words: str) -> None:
    with Path(os.environ["FAKE_CALLS"]).open("a") as file:
        file.write(" ".join(words) + "\n")


def serve(plan: Plan, argv: list[str]) -> int:
    from rl_agent.engine.model import resolve_model

    how = behaviour("serve")
    if how == "die" or (how == "die_on_new" and resolve_model(plan.config).weight_version > 0):
        time.sleep(0.3)
        print("CUDA error: the reason it died", file=sys.stderr)
        return 3
    if how == "hang":
        time.sleep(600)
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "orphan":  # a child in a session of its own, as torchrun's workers are
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    engine = plan.config.engine
    answer_forever(engine.host, engine.port, resolve_model(plan.config).path)
    return 0


def join_pool(plan: Plan, argv: list[str]) -> int:
    """The real worker, with a simulated engine in a process of its own."""
    from rl_agent.cli import join_pool
    from rl_agent.worker.run_worker import RunEngine

    engine = PROJECT_ROOT / "tests" / "support" / "streaming_engine.py"

    def words(self: RunEngine, model: str, port: int) -> list[str]:
        return [sys.executable, str(engine), "--port", str(port), "--root", model]

    RunEngine.words = words  # type: ignore[method-assign]
    return join_pool.main(argv[1:])


def answer_forever(host: str, port: int, root: str) -> None:
    """Answers every GET as vLLM answers /v1/models; prints a line once it listens."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"data": [{"id": "m", "root": root}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer((host, port), Handler)
    print("listening", flush=True)
    server.serve_forever()


def rollout(plan: Plan, argv: list[str]) -> int:
    split, iteration = option(argv, "--split"), int(option(argv, "--iteration"))
    if plan.command.rank:
        return 0  # the master has taken all chunks
    growing = plan.paths.checkpoint_shard(split, iteration)
    growing.parent.mkdir(parents=True, exist_ok=True)
    is_begun = growing.exists()
    if is_begun:
        note("begun", split, str(iteration))
    growing.touch()
    how = behaviour("rollout")
    if (how == "hang" and not is_begun) or (how == "hang_in_test" and split == "test"):
        time.sleep(600)
    while how == "wait_for_file" and not Path(os.environ["HOME"], f"go-{iteration}").exists():
        time.sleep(0.05)
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if how in ("engine_dies", "engine_dies_unseen") and not is_begun:
        kill_group(plan, "vllm")
        from rl_agent.pool import run_pool

        while how == "engine_dies_unseen":  # what a rollout looks at that waits for the pool
            try:
                run_pool.check_engine(plan, os.environ)
            except RetryLater as error:
                print(error, file=sys.stderr)
                break
            time.sleep(0.1)
        return 75
    if how == "manager_dies" and not is_begun:
        kill_group(plan, "manager")
        return 75
    if how == "engine_gone":
        return 75
    if how == "fail":
        return 7
    if how == "environment":
        Path(os.environ["HOME"], "environment").write_text(json.dumps(dict(os.environ)))
    growing.rename(plan.paths.shard(split, iteration))
    return 0


def kill_group(plan: Plan, name: str) -> None:
    from rl_agent.system.processes import pid_space

    record = plan.groups_dir(pid_space()) / name
    os.kill(int(record.read_text().split()[0]), signal.SIGKILL)


def prepare_update(plan: Plan, argv: list[str]) -> VerbResult:
    if behaviour("prepare-update") == "hang":
        time.sleep(600)
    if behaviour("prepare-update") == "nothing":
        print("nothing to train on: no step is positive", file=sys.stderr)
        return VerbResult({"outcome": "skipped"})
    return VerbResult({"outcome": "done"})


def train(plan: Plan, argv: list[str]) -> int:
    how = behaviour("train")
    if how == "hang":
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        time.sleep(600)
    while how == "wait_for_file" and not Path(os.environ["HOME"], "go").exists():
        time.sleep(0.05)
    if how == "fail":
        print("ValueError: the reason it failed", file=sys.stderr)
        for _ in range(20):  # as torchrun does, which does not know it
            print("  traceback : To enable traceback see: …", file=sys.stderr)
        return 1
    return 0


def publish(plan: Plan, argv: list[str]) -> VerbResult:
    from blake3 import blake3

    from rl_agent.served_model import versions
    from rl_agent.served_model.digest import FileDigest

    if behaviour("publish") == "hang":
        time.sleep(600)
    served = versions.served_folder(plan.paths)
    version = versions.next_version(plan.paths)
    folder = plan.paths.version_dir(version)
    folder.mkdir(parents=True)
    record = versions.Published(
        weight_version=version,
        previous=served.name if served else None,
        run_id=plan.run_id,
        iteration=int(option(argv, "--iteration")),
        learning_rate=0.1,
        samples=1,
        update_steps=1,
        created_at=0.0,
        files={"model.safetensors": FileDigest(3, blake3(b"abc").hexdigest())},
    )
    versions.write_record(folder, record)
    (folder / "model.safetensors").write_bytes(b"aBc" if behaviour("publish") == "damaged" else b"abc")
    versions.switch(plan.paths, folder)
    return VerbResult({"path": str(folder), "weight_version": version})


def swap(plan: Plan, argv: list[str]) -> VerbResult:
    from rl_agent.weights.settings import store_folder

    how = behaviour("swap")
    if how == "hang":
        store_folder(plan).mkdir()
        time.sleep(600)
    is_taken = plan.config.weights.is_inplace and how != "fail"
    return VerbResult({"answer": "wanted" if is_taken else "old-version"})


def stream_train(plan: Plan, argv: list[str]) -> int:
    """Publishes every iteration whose rollout is over; TERM ends it with 143."""
    from rl_agent.trainer.grpo.checkpoint.states import StreamProgress
    from rl_agent.trainer.grpo.launch import progress_file

    how, progress = behaviour("stream-train"), progress_file(plan)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if how == "die":
        print("RuntimeError: the reason the trainer died", file=sys.stderr)
        return 1
    if option(argv, "--node-rank") != "0":
        return follow(plan)
    before = StreamProgress.read(progress)
    iteration = before.iteration if before else plan.first_iteration - 1
    while True:
        note("published", str(iteration))
        write_whole(progress, json.dumps(asdict(StreamProgress(os.getpid(), iteration, iteration))))
        if iteration == plan.last_iteration and plan.ends_with_evaluation:
            try:
                time.sleep(600)
            finally:
                note("trainer stopped")
        if iteration == plan.last_iteration:
            return int(how.removeprefix("end_with_")) if how.startswith("end_with_") else 0
        while iteration + 1 not in plan.paths.iterations("train") or how == "hang":
            time.sleep(0.02)
        iteration += 1
        if how == "die_once" and before is None:
            os.kill(os.getpid(), signal.SIGKILL)


def follow(plan: Plan) -> int:
    """A rank on another node: it ends when that of the master does."""
    from rl_agent.system.processes import ProcessId
    from rl_agent.trainer.grpo.checkpoint.states import StreamProgress
    from rl_agent.trainer.grpo.launch import progress_file

    earlier = StreamProgress.read(progress_file(plan))
    if earlier is not None and ProcessId.of(earlier.pid).is_running:
        earlier = None
    while True:
        first = StreamProgress.read(progress_file(plan))
        is_gone = first is not None and first != earlier and not ProcessId.of(first.pid).is_running
        now = StreamProgress.read(progress_file(plan))  # what it wrote before its end counts
        if now is not None and now.iteration == plan.last_iteration:
            return 0
        if is_gone and now == first:
            return 1
        time.sleep(0.02)


FAKES = {
    "serve": serve,
    "join-pool": join_pool,
    "rollout": rollout,
    "prepare-update": prepare_update,
    "train": train,
    "publish": publish,
    "swap": swap,
    "stream-train": stream_train,
}


def call(argv: list[str], member: "Member", rollouts: "RolloutLoop") -> VerbResult:
    return fake(argv) if argv[0] in FAKES else real_call(argv, member, rollouts)


def fake(argv: list[str]) -> VerbResult:
    try:
        module_of(argv[0]).parser().parse_args(argv[1:])  # flags that the real verb would not take
    except UsageError as error:
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return VerbResult(status=error.exit_code)
    plan = Plan.read(Path(option(argv, "--plan")))
    note(argv[0], *argv[3:])  # without the plan, which every verb has first
    result = FAKES[argv[0]](plan, argv)
    return result if isinstance(result, VerbResult) else VerbResult(status=result)


if __name__ == "__main__":
    verb = sys.argv[1]
    if verb == "external":
        answer_forever("127.0.0.1", int(sys.argv[2]), sys.argv[3])
    if verb == "node":
        from rl_agent.cli.driver import node

        sys.exit(node.main(sys.argv[2:], call=call))
    sys.exit(fake(sys.argv[1:]).status)
