"""docs/how-to/judge-with-a-model.md: a stand-in answers for the judge, a small model for the agent."""

import pytest

from tests.integration.docs.agents.judge import judging
from tests.integration.docs.reader import Reader, missing_lines, promised
from tests.unit.docs.documented_blocks import blocks

PAGE = "docs/how-to/judge-with-a-model.md"


def rule(question: str) -> tuple[str, str]:
    if "a compromise between two cities" in question.rpartition("END EVIDENCE")[2]:
        return "FAIL", "no reason is given"
    return "PASS", "the answer is Canberra"


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_both_tasks_of_the_page_are_judged_with_the_printed_verdicts(tmp_path, small):
    with judging(rule) as (url, requests):
        words = small.run("env_config.train_tasks_rollout_size=2")
        once = f"openai_config.model=gpt-4o --max-iterations 1 openai_config.base_url={url} {words}"
        reader = Reader(PAGE, tmp_path, {"openai_config.model=gpt-4o": once})
        (reader.home / "train.jsonl").write_text(blocks(reader.page, "json")[0])
        reader.types(reader.block("export OPENAI_API_KEY"), timeout_s=600)
    assert len(requests) == 4  # the question before the start, two references and a rubric
    assert {(request["model"], request["key"]) for request in requests} == {("gpt-4o", "Bearer ...")}
    show = "python -m rl_agent.cli trajectories show"
    assert missing_lines(promised(reader.page, show), reader.types(reader.block(show))) == []
