"""Every command shows how it is used."""

import ast

import pytest

from rl_agent.cli.__main__ import main, verbs
from rl_agent.paths import PROJECT_ROOT

SCRIPTS = [
    *sorted((PROJECT_ROOT / "benchmarks").rglob("*.py")),
    *(PROJECT_ROOT / "data" / name for name in ("make_tasks.py", "teach_base_model.py")),
]


@pytest.mark.parametrize("verb", verbs())
def test_the_help_of_every_verb_ends_with_an_example_of_it(verb, capsys):
    try:
        main([verb, "--help"])
    except SystemExit as end:
        assert end.code == 0
    _, found, examples = capsys.readouterr().out.rpartition("\nexample")
    assert found
    assert f"rl_agent.cli {verb}" in examples or (verb == "plan" and "bash scripts/run.sh" in examples)


@pytest.mark.parametrize("path", [path for path in SCRIPTS if "ArgumentParser(" in path.read_text()], ids=str)
def test_the_help_of_every_script_shows_a_call_of_it(path):
    text = path.read_text()
    assert "description=__doc__" in text
    assert f"python {path.relative_to(PROJECT_ROOT)}" in (ast.get_docstring(ast.parse(text)) or "")
