"""Trajectories are shown as the store has them, whoever wrote what is in them, and never run."""

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest

from rl_agent.page.tokens import TOKENS_A_TURN
from rl_agent.page.training_sample import SEQUENCES_A_PAGE
from rl_agent.rollout.trajectories.line import to_json
from rl_agent.types import Compaction, EpisodeKey, Failure, LostAttempt, SeenContext, Status, TokenSpan
from tests.integration.trainer.settings import LOSS
from tests.unit.page.stores import address, attempts, keep_png, record, text_of, until_indexed
from tests.unit.rollout.trajectories_made import make_step, make_trajectory

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{7*7}}${7*7}"


class Tags(HTMLParser):
    """The tags of a page, as a browser reads them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def is_harmless(html: str) -> bool:
    tags = Tags(html).tags
    scripts = [attributes for tag, attributes in tags if tag == "script"]
    names = {name for _, attributes in tags for name in attributes}
    links = {
        str(attributes[name]) for _, attributes in tags for name in ("src", "href") if name in attributes
    }
    return (
        scripts == [{"src": "/static/page.js", "defer": None}]
        and not any(name.startswith("on") or name in ("style", "srcdoc") for name in names)
        and all(link.startswith(("/static/", "/runs/", "?", "#")) for link in links)
    )


def plan_of_grpo(paths):
    (paths.log_path / "runs" / "latest").mkdir(parents=True)
    plan = {"config": {"trainer": {"kind": "grpo", "loss": LOSS}}}
    (paths.log_path / "runs" / "latest" / "plan.json").write_text(json.dumps(plan))


async def test_no_field_of_an_episode_becomes_a_part_of_the_page(paths, look):
    plan_of_grpo(paths)
    step = replace(
        make_step("8", observation=EVIL, images=(EVIL, "../../etc/passwd")),
        action=json.dumps({"name": EVIL, "arguments": {EVIL: EVIL, "x": [EVIL]}}),
        seen=SeenContext(
            policy=EVIL,
            images=(EVIL,),
            whole_from=1,
            compactions=(Compaction(1, (1,), (), replace(make_step().generation, text=EVIL)),),
        ),
        generation=replace(
            make_step().generation, text=EVIL, finish_reason=EVIL, spans=(TokenSpan(1, 3, EVIL),)
        ),
    )
    trajectory = make_trajectory(0, steps=(make_step(EVIL), step), system_prompt=EVIL, difficulty=EVIL)
    trajectory = replace(
        trajectory,
        key=EpisodeKey(EVIL, 0, 0),
        task=replace(trajectory.task, task_id=EVIL, prompt=EVIL, answer=EVIL, env=EVIL, extra={EVIL: EVIL}),
        model=EVIL,
        status=Status.FAILED,
        reward=None,
        failure=Failure(EVIL, EVIL),
        lost_attempts=(LostAttempt(Failure(EVIL, EVIL), 1, 1.0),),
        reward_detail={
            "verdict": EVIL,
            "reason": EVIL,
            "criteria": [{"criterion": EVIL, "reason": EVIL}, EVIL],
        },
        last_observation=EVIL,
        rewards={EVIL: 0.25},
    )
    trained = replace(
        trajectory, key=EpisodeKey(EVIL, 0, 1), status=Status.COMPLETED, reward=1.0, failure=None
    )
    record(paths, 1, trajectory, trained)
    client = await look(paths.log_path)
    await until_indexed(client)
    for path in (
        f"/runs/log/episodes?{urlencode({'text': EVIL, 'task_id': EVIL, 'iteration': EVIL, 'order': EVIL})}",
        "/runs/log/episodes",
        address(EVIL),
        address(EVIL, tokens=1),
        address(EVIL, tokens="engine"),
        address(EVIL, attempt=1, tokens="sample"),
        address(EVIL, view="group"),
    ):
        html = await text_of(client, path)
        assert is_harmless(html), path
        assert EVIL in unescape(html), path


async def test_a_turn_shows_what_the_model_saw_said_and_did(paths, look):
    first, second = keep_png(paths), keep_png(paths, 200, 100, "blue")
    digest = first.rsplit("/", 1)[1].removesuffix(".png")
    steps = (
        make_step("click 250 500", observation="page one", images=(first,)),
        replace(
            make_step("drag", observation="page two", images=(second,)),
            action='{"name": "drag", "arguments": {"x": 100, "y": 200, "to_x": 500, "to_y": 1000}}',
            seen=SeenContext("window", (digest,), whole_from=1),
            invalid=True,
            changed=False,
        ),
    )
    record(
        paths,
        1,
        replace(
            make_trajectory(0, steps=steps, system_prompt="be kind"),
            last_observation="the end",
            rewards={"format": 0.25},
        ),
    )
    client = await look(paths.log_path)
    await until_indexed(client)
    html = await text_of(client, address())
    assert "format <b>0.250</b>" in html
    for words in (
        "be kind",
        "page one",
        "page two",
        "the end",
        "could not be carried out",
        "nothing changed",
    ):
        assert words in html
    assert 'viewBox="0 0 40 20"' in html and re.search(r'class="ring" cx="10.0" cy="10.0"', html)
    assert re.search(r'class="ring" x1="20.0" y1="20.0" x2="100.0" y2="100.0"', html)
    assert "In the context: turn 0 left out." in html
    assert "1 images of earlier turns in the context" in html
    assert "<b>drag</b>" in html and "<dt>to_y</dt><dd><pre>1000</pre>" in html
    for shown in re.findall(r'src="(/runs/log/images/[^"]+)"', html):
        assert (await client.get(shown)).headers["Content-Type"] == "image/png"


async def test_siblings_stand_side_by_side_and_the_selection_can_be_taken_along(paths, look):
    siblings = [*attempts(0, [0.0, 1.0, 0.5]), make_trajectory(1, reward=0.75)]
    record(paths, 1, *siblings)
    client = await look(paths.log_path)
    assert '<b id="total">4</b>' in await until_indexed(client)
    html = await text_of(client, address(view="group"))
    assert re.findall(r">(task-0:0:\d)<", html) == ["task-0:0:0", "task-0:0:1", "task-0:0:2"]
    assert re.findall(r"reward <b[^>]*>([^<]*)<", html) == ["0", "1", "0.500"]
    exported = await (await client.get("/runs/log/export?reward_min=0.5")).read()
    assert exported.splitlines() == [to_json(sibling) for sibling in siblings[1:]]
    assert "sibling" not in re.sub("<[^>]*>", "", await text_of(client, address(task="task-1", view="group")))


async def test_the_prompt_of_a_turn_is_shown_as_its_tokens_where_they_are(paths, look):
    record(paths, 1, make_trajectory(0, steps=(replace(make_step(), prompt_token_ids=(11, 12)),)))
    client = await look(paths.log_path)
    await until_indexed(client)
    assert '<pre class="text">#11 #12 </pre>' in await text_of(client, address(tokens="logprob"))
    assert "#11" not in await text_of(client, address())


async def test_the_links_of_a_long_response_lead_through_each_of_its_tokens_once(paths, look):
    count = 2 * TOKENS_A_TURN + 9
    long = replace(make_step().generation, token_ids=tuple(range(count)), logprobs=(-0.1,) * count)
    record(paths, 1, make_trajectory(0, steps=(make_step(), replace(make_step(), generation=long))))
    client = await look(paths.log_path)
    await until_indexed(client)
    path, seen, looks = address(tokens="logprob"), [], 0
    while path:
        turn = (await text_of(client, path)).partition('id="turn-1"')[2]
        seen += [int(number) for number in re.findall(r'<span class="lp\d"[^>]*>#(\d+) </span>', turn)]
        more = re.search(r'href="(\?[^"]*&(?:amp;)?from=\d+)#turn-1"', turn)
        path = "/runs/log/episode" + unescape(more[1]) if more else ""
        looks += 1
    assert seen == list(range(count)) and looks == 3


async def test_a_training_sample_has_its_siblings_advantages_and_every_sequence(paths, look):
    plan_of_grpo(paths)
    image = keep_png(paths)
    steps = tuple(
        replace(
            make_step("8", images=(image,), context_reset=True),
            seen=SeenContext("window", (Path(image).stem,)),
        )
        for _ in range(SEQUENCES_A_PAGE + 1)
    )
    record(paths, 1, *attempts(0, [1.0, 0.0], steps=steps), make_trajectory(1, reward=None))
    record(paths, 1, *attempts(0, [1.0], split="test"), split="test")
    client = await look(paths.log_path)
    await until_indexed(client)
    assert 'tokens=sample"' in unescape(await text_of(client, address()))
    assert "tokens=sample" not in await text_of(client, address(split="test", tokens="sample"))
    html = await text_of(client, address(tokens="sample"))
    advantages = re.findall(r'<td class="num">([^<]*)</td></tr>', html)
    assert advantages == ["0.707", "-0.707"]
    assert html.count('id="sequence-') == SEQUENCES_A_PAGE and "3 tokens of context, 1 with loss" in html
    assert html.count(f'src="/runs/log/images/{image[-71:]}"') == SEQUENCES_A_PAGE
    last = await text_of(client, address(tokens="sample", turn=SEQUENCES_A_PAGE))
    assert re.findall(r'id="sequence-(\d+)"', last) == [str(SEQUENCES_A_PAGE)]
    alone = await text_of(client, address("task-1", tokens="sample"))
    assert "Not trained on: It has no reward" in alone


async def test_a_long_episode_comes_in_pages_and_a_link_leads_to_its_turn(paths, look):
    steps = tuple(make_step(str(n), observation=f"seen {n}.") for n in range(120))
    record(paths, 1, make_trajectory(0, steps=steps))
    client = await look(paths.log_path)
    await until_indexed(client)
    html = await text_of(client, address(turn=70))
    assert re.findall(r'id="turn-(\d+)"', html) == [str(n) for n in range(50, 100)]
    assert "seen 70." in html and "seen 10." not in html and "turn=100" in html


@pytest.mark.parametrize("fields", [{"task": "no"}, {"attempt": "9"}, {"iteration": "x"}, {"split": "test"}])
async def test_an_episode_that_is_not_there_is_one_line(paths, look, fields):
    record(paths, 1, make_trajectory(0))
    client = await look(paths.log_path)
    await until_indexed(client)
    key = {"split": "train", "iteration": "1", "task": "task-0", "group": "0", "attempt": "0"} | fields
    answer = await client.get(f"/runs/log/episode?{urlencode(key)}")
    assert answer.status == 404 and "not recorded here" in await answer.text()


async def test_an_image_says_what_it_is_and_may_run_nothing(paths, look):
    name = keep_png(paths)
    client = await look(paths.log_path)
    answer = await client.get(f"/runs/log/images/{name[-71:]}")
    assert answer.status == 200 and answer.headers["Content-Type"] == "image/png"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_an_image_that_was_changed_is_not_shown(paths, look):
    first, second = keep_png(paths), keep_png(paths, colour="blue")
    shutil.copyfile(second, first)
    client = await look(paths.log_path)
    assert (await client.get(f"/runs/log/images/{first[-71:]}")).status == 404


async def test_a_link_to_an_episode_that_is_opened_first_waits_for_the_index(look, paths, monkeypatch):
    monkeypatch.setattr("rl_agent.page.index.FIRST_LOOK_S", 60.0)
    record(paths, 1, make_trajectory())
    client = await look(paths.log_path)
    assert (await client.get(address())).status == 200


async def test_an_episode_begins_with_outcome_advantage_and_answer(paths, look):
    siblings = [
        replace(sibling, task=replace(sibling.task, answer="forty-two"))
        for sibling in attempts(0, [1.0, 0.0, 0.0, 0.0])
    ]
    alone = make_trajectory(1, reward=0.5)
    record(paths, 1, *siblings, alone)
    client = await look(paths.log_path)
    listed = await until_indexed(client)
    assert 'class="good">1</b>' in listed and 'class="low">0</b>' in listed and ">siblings<" not in listed
    assert listed.count('<td class="cut">forty-two</td>') == 4
    shown = await text_of(client, address(attempt=0))
    first_screen = shown[: shown.index('id="turn-0"')]
    assert "+0.750 against the mean of its 4 siblings" in first_screen and "forty-two" in first_screen
    assert "expected answer: <b>forty-two</b>" in shown[shown.index('id="turn-0"') :]
    assert "siblings side by side" in shown
    task, attempt = alone.key.task_id, alone.key.attempt
    assert "siblings side by side" not in await text_of(client, address(task=task, attempt=attempt))


async def test_tasks_lead_to_their_episodes_and_are_only_text(paths, look):
    (paths.log_path / "runs" / "latest").mkdir(parents=True)
    plan = {"config": {"trainer": {"reward_threshold": 0.5}}}
    (paths.log_path / "runs" / "latest" / "plan.json").write_text(json.dumps(plan))
    for iteration, reward in ((1, 0.6), (2, 0.2)):
        record(paths, iteration, *attempts(0, [reward], split="test"), split="test")
    evil = make_trajectory(9, reward=0.25)
    evil = replace(evil, key=EpisodeKey(EVIL, 0, 0), task=replace(evil.task, task_id=EVIL, prompt=EVIL))
    record(paths, 1, evil)
    client = await look(paths.log_path)
    html = await until_indexed(client, "/runs/log/tasks")
    assert "<b>1</b> lost, <b>0</b> gained" in html and is_harmless(html)
    links = [unescape(link) for link in re.findall(r'href="(/runs/log/episodes[?][^"]*)"', html)]
    pages = [await text_of(client, link) for link in links]
    assert [re.search(r'id="total">(\d+)', page)[1] for page in pages] == ["2", "1", "1", "1"]


@pytest.mark.parametrize(
    ("rewards", "columns"),
    [
        ([0.0, 0.0, 1.0], ["2 from 0 to 0.050", "1 from 0.950 to 1"]),
        ([-1.0, 0.15, 1.0, 1.0], ["1 from -1 to -0.900", "1 from 0.100 to 0.200", "2 from 0.900 to 1"]),
    ],
)
async def test_a_histogram_counts_the_rewards_of_an_iteration(paths, look, rewards, columns):
    record(paths, 1, *attempts(0, rewards))
    record(paths, 2, *attempts(0, [0.5]))
    html = await until_indexed(await look(paths.log_path), "/runs/log/episodes?iteration=1")
    drawn = re.findall(r'<rect [^>]*height="([\d.]+)"><title>(.*?)</title>', html)
    assert [words for _, words in drawn] == columns and '<details id="histogram" open>' in html
    counts = [int(words.split()[0]) for words in columns]
    assert [float(height) / float(drawn[0][0]) for height, _ in drawn] == pytest.approx(
        [count / counts[0] for count in counts], rel=0.01
    )
