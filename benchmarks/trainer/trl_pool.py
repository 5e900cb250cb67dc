"""TRL over a pool that loses its only engine, beside TRL alone: docs/how-to/train-with-trl.md, several seeds.

    python benchmarks/trainer/trl_pool.py --trl-python PYTHON [--seeds 0 1 2 3 4]

PYTHON is that of an environment made as the page says. Both sides run the page's program: one base model, the
same tasks in the same order, 48 steps of 128 completions, the same settings and seeds. TRL alone samples with
transformers in its own process. Over the pool the only engine is killed in the 17th step with requests
running, and another joins. Seeds take turns in which side goes first. A run counts only if all completions
came and, over the pool, each was sampled by the weights of its step.

Rewards are means at temperature 1; "greedy" is the accuracy of greedy decoding on 400 held-out tasks.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainer.trl_training import accuracy, read_tasks
from rl_agent.system.flag_parser import FlagParser
from tests.integration.docs.pool.trl_page import SAMPLES, STEPS, TrlPage, changed, versions

PART = STEPS // 4
ALONE = {
    '{"prompt": prompt} for prompt in tasks': (
        '{"prompt": [{"role": "user", "content": prompt}], "answer": task["answer"]}'
        " for prompt, task in tasks.items()"
    ),
    "with WeightPublisher(POOL, api_key=TOKEN) as publisher:\n    ": "",
    "lambda reward, **_: reward": (
        "lambda completions, answer, **_:"
        ' [score(text[-1]["content"], right) for text, right in zip(completions, answer, strict=True)]'
    ),
    ", rollout_func=rollout": "",
}
"""TRL's own part in place of the pool: its chat template, its sampling, the same score."""


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of one run, in percent."""

    first: float
    """Mean reward of the samples of the first quarter of the steps."""
    last: float
    greedy: float
    """Accuracy after the last step."""


def seeded(program: str, seed: int, output: str) -> str:
    settings = {'"bf16": False': f'"bf16": False, "seed": {seed}', "seed=step": f"seed={seed * STEPS} + step"}
    return changed(program, settings | {'GRPOConfig("trained"': f'GRPOConfig("{output}"'})


def train_alone(page: TrlPage, seed: int) -> Learned:
    page.types(changed(seeded(page.program, seed, f"alone-{seed}"), ALONE), page.command)
    return learned(page, f"alone-{seed}")


def train_over_pool(page: TrlPage, seed: int) -> Learned:
    with page.trained_past_a_kill(seeded(page.program, seed, f"pool-{seed}")) as printed:
        account = page.account()
    requests = account["requests"]
    assert versions(printed) == [(step, str(step + 1)) for step in range(STEPS)], printed
    assert account["engine_deaths"] == 1 and requests["failed"] == 0, account
    assert requests["completed"] == requests["submitted"] == STEPS * SAMPLES, account
    return learned(page, f"pool-{seed}")


SIDES: dict[str, Callable[[TrlPage, int], Learned]] = {
    "TRL alone": train_alone,
    "over the pool": train_over_pool,
}


def learned(page: TrlPage, output: str) -> Learned:
    checkpoint = page.folder / output / f"checkpoint-{STEPS}"
    log = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    rewards = [100 * entry["reward"] for entry in log if "reward" in entry]
    assert len(rewards) == STEPS, f"{output} has rewards of {len(rewards)} steps"
    return Learned(
        statistics.fmean(rewards[:PART]), statistics.fmean(rewards[-PART:]), greedy(page, checkpoint)
    )


def greedy(page: TrlPage, model: Path) -> float:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(page.folder / "base-model", padding_side="left")
    answers = {
        tokenizer.apply_chat_template(
            [{"role": "user", "content": task["prompt"]}], tokenize=False, add_generation_prompt=True
        ): task["answer"]
        for task in read_tasks(page.folder / "test.jsonl")
    }

    def verdicts(prompts: Sequence[str], texts: Sequence[str], are_whole: Sequence[bool]) -> list[float]:
        rows = zip(prompts, texts, are_whole, strict=True)
        return [float(is_whole and text.strip() == answers[prompt]) for prompt, text, is_whole in rows]

    return 100 * accuracy(AutoModelForCausalLM.from_pretrained(model), tokenizer, verdicts, list(answers))


def summary(runs: dict[str, list[Learned]]) -> str:
    """Render means and standard errors over the seeds, and the paired difference of the sides."""
    alone, pool = ([(*astuple(run), run.last - run.first) for run in runs[side]] for side in SIDES)
    apart = [[p - a for p, a in zip(*pair, strict=True)] for pair in zip(pool, alone, strict=True)]
    lines = ["                first 12 steps   last 12 steps    greedy after     last - first"]
    for name, rows in {**dict(zip(SIDES, (alone, pool), strict=True)), "difference": apart}.items():
        columns = (
            f"{statistics.fmean(column):8.1f} ({error(column):.1f})" for column in zip(*rows, strict=True)
        )
        lines.append(f"{name:13}  " + "   ".join(columns))
    return "\n".join(lines)


def error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def main(argv: list[str] | None = None) -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--trl-python", required=True, help="the Python of an environment with TRL")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="at least two")
    arguments = parser.parse_args(argv)
    runs: dict[str, list[Learned]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        page = TrlPage(Path(folder), arguments.trl_python)
        print(f"greedy before: {greedy(page, page.folder / 'base-model'):.1f} %", flush=True)
        for turn, seed in enumerate(arguments.seeds):
            for side in list(SIDES)[:: -1 if turn % 2 else 1]:
                runs[side].append(SIDES[side](page, seed))
                print(
                    f"seed {seed}, {side:13}",
                    *(f"{value:5.1f}" for value in astuple(runs[side][-1])),
                    flush=True,
                )
    print(summary(runs))


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
