"""Answers of `node` to run.sh are read back by bash as they were."""

import io
import subprocess
import sys

import pytest

from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import node
from rl_agent.cluster.protocol import records
from rl_agent.cluster.protocol.records import MASTER_FILE, View
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.paths import PROJECT_ROOT
from rl_agent.plan import runs
from tests.support.rollout_setup import make_plan

READ = """
source "$1/scripts/shell_functions/common_utils.sh"
exec {NODE_OUT}<"$2"
declare -A found=([left]=over)
for _ in 1 2; do
  status=0
  take_reply found || status=$?
  printf '%s:%s:%s:%s;' "$status" "${found[path]-none}" "${found[order]-none}" "${found[left]-none}"
done
"""


def test_bash_reads_the_fields_and_the_status_of_each_reply(tmp_path):
    path = "/log=a]b\"c'$(touch hacked)\nd é"
    replies = io.BytesIO()
    node.send_reply(replies, VerbResult({"path": path, "order": 7}))
    node.send_reply(replies, VerbResult(status=75))
    (tmp_path / "replies").write_bytes(replies.getvalue())

    words = ["bash", "-euc", READ, "bash", str(PROJECT_ROOT), str(tmp_path / "replies")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, cwd=tmp_path)

    assert done.stdout == f"0:{path}:7:none;75:none:none:none;", done.stderr
    assert not (tmp_path / "hacked").exists()


def test_a_bug_ends_its_verb_with_1_and_argparse_keeps_its_status(capsys):
    def broken(words, member, rollouts):
        raise KeyError("a bug")

    def refused(words, member, rollouts):
        raise SystemExit(2)

    assert node.answer(["verb"], broken, None, None) == VerbResult(status=1)
    assert node.answer(["verb"], refused, None, None) == VerbResult(status=2)
    assert "KeyError: 'a bug'" in capsys.readouterr().err


def test_a_request_is_read_word_by_word_and_ends_with_the_pipe():
    requests = io.BytesIO(b"2\0flag\0two\nlines\0")
    assert node.read_request(requests) == ["flag", "two\nlines"]
    assert node.read_request(requests) == []


def test_a_run_ends_for_doctor_with_the_status_that_the_shell_gets(tmp_path):
    file = tmp_path / "exit-status"
    problems = node.Problems()
    problems.note("rollout", VerbResult(status=1, problem="rollout: none of 12\n episodes has a reward"))
    assert node.why_stopped(file, problems) == (143, "stopped by TERM")
    for text, ending in {
        "130\n": (130, "interrupted by Ctrl+C"),
        "129\n": (129, "the terminal was closed"),
        "1\n": (1, "rollout: none of 12 episodes has a reward"),
        "half a li": (143, "stopped by TERM"),
    }.items():
        file.write_text(text)
        assert node.why_stopped(file, problems) == ending


@pytest.mark.parametrize(
    ("then", "status", "reason"),
    [
        (("rollout", VerbResult()), 75, "failed with status 75"),
        (("flag", VerbResult()), 75, "rollout: the engine was lost"),
        (("train", VerbResult(status=1)), 1, "failed with status 1"),
        (("next", VerbResult(status=75, problem="next: no master")), 75, "next: no master"),
    ],
)
def test_a_repaired_failure_is_not_the_reason_of_a_later_end(tmp_path, then, status, reason):
    file = tmp_path / "exit-status"
    file.write_text(str(status))
    problems = node.Problems()
    problems.note("rollout", VerbResult(status=75, problem="rollout: the engine was lost"))
    problems.note(*then)
    assert node.why_stopped(file, problems) == (status, reason)


def test_a_node_whose_run_sh_was_killed_leaves_without_a_traceback(tmp_path):
    plan = runs.write_plan(make_plan(tmp_path, engine_url="http://127.0.0.1:1"), None)
    command = [sys.executable, "-P", "-m", "rl_agent.cli", "node", "--plan", str(plan)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.read(3) == "0\0\0", "it is a member of the run"
        process.stdout.close()
        process.stdin.write("2\0model\0--help\0")
        process.stdin.flush()
        log = process.stderr.read()
    assert process.returncode == 0 and "Traceback" not in log and "BrokenPipe" not in log, log


@pytest.mark.parametrize(("says_so", "status"), [(True, 0), (False, 137)])
def test_a_run_whose_run_sh_was_killed_is_not_done_for_the_others(tmp_path, says_so, status):
    plan = make_plan(tmp_path, engine_url="http://127.0.0.1:1")
    path = runs.write_plan(plan, None)
    command = [sys.executable, "-P", "-m", "rl_agent.cli", "node", "--plan", str(path)]
    words = f"4\0flag\0leave\0--plan\0{path}\0" if says_so else ""
    subprocess.run(command, input=words, capture_output=True, text=True, timeout=120, check=True)
    view = records.parse(View, SharedFolder(plan.config.log_path).read(MASTER_FILE))
    assert view is not None and view.ended is not None and view.ended.status == status
