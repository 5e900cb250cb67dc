"""The verb `what-if`: a table, JSON, and one line for what is wrong."""

import json

import pytest

from rl_agent.cli.__main__ import main
from rl_agent.simulation.spot import read_trace

SMALL = (
    "prompts=4", "group_size=2", "mean_tokens=600", "longest=2048", "trainer_gpus=1", "engine_gpus=1",
    "machines=2", "engine_start_s=5", "switch_s=2", "hours=0.1",
)  # fmt: skip


def played(capsys, *words: str) -> dict:
    assert main(["what-if", "--json", *SMALL, *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_setup_is_a_row_of_the_table_where_there_is_room(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["what-if", *SMALL, "model=1.7b"]) == 0
    shown = capsys.readouterr().out
    for name in ("static", "on demand", "elastic", "elastic recompute", "elastic hybrid"):
        assert f"\n {name} " in shown
    assert "Simulated." in shown and "1.00x" in shown


def test_a_terminal_of_80_columns_shows_whole_headings_and_numbers(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["what-if", *SMALL, "model=1.7b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)
    for heading in ("machines", "$/M tokens", "trainer waits", "engines idle", "deaths"):
        assert any(line.split("  ")[0].strip() == heading for line in lines)


def test_json_holds_what_was_assumed_and_what_came_of_it(capsys):
    result = played(capsys, "--setups", "static,elastic", "trainer_price=7")
    assert result["config"]["trainer_price"] == 7
    assert [setup["setup"] for setup in result["setups"]] == ["static", "elastic"]
    static = result["setups"][0]
    assert static["cost_per_step"] == pytest.approx(7 * static["hours"] / static["iterations"])


def test_a_trace_that_was_kept_gives_the_same_again(capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    hours = ("up_hours=0.05", "down_hours=0.01")
    drawn = played(capsys, "--setups", "elastic", "--write-trace", str(trace), *hours)
    assert read_trace(trace.read_text().splitlines(), "t")
    again = played(capsys, "--setups", "elastic", "--trace", str(trace))
    assert again["setups"][0]["tokens_per_s"] == pytest.approx(drawn["setups"][0]["tokens_per_s"], rel=0.02)


def test_a_model_can_be_given_by_its_configuration(capsys, tmp_path):
    config = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "vocab_size": 151_936}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    small = played(capsys, "--setups", "static", f"model={tmp_path}")["setups"][0]
    large = played(capsys, "--setups", "static", "model=8b")["setups"][0]
    assert small["tokens_per_s"] > large["tokens_per_s"]


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ("when,what\n", "expected a header time_s,change[,how]"),
        ("time_s,change\nsoon,+1\n", ":2: expected SECONDS,+1"),
        ("time_s,change\n", "the trace has no line with a change"),
        ("time_s,change\n5,+1\n9,-1\n12,-1\n", "at 12 s a machine goes where there is none"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_trace_is_one_line(capsys, tmp_path, trace, words):
    path = tmp_path / "trace.csv"
    if trace is not None:
        path.write_text(trace)
    assert main(["what-if", "--trace", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("what-if: ") and words in line and "trace.csv" in line


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["engine_price=-1"], 78, "engine_price=-1: expected greater than or equal to 0"),
        (["engine_price=cheap"], 78, "engine_price=cheap: expected a valid number"),
        (["engine_prize=1"], 78, "there is no key engine_prize; did you mean engine_price?"),
        (["+surprise=1"], 78, "+surprise=1: there is no key surprise"),
        (["seed=1,2"], 78, "seed=1,2: expected a valid integer"),
        (["model=9b"], 78, "model=9b: is none of 1.7b, 8b, 14b, 32b"),
        (["mean_tokens=20000"], 78, "must be below longest=14336"),
        (["gpu_memory_gb=4"], 78, "does not fit on engine_gpus=2"),
        (["8b"], 2, "'8b' (the command line): an override is key=value,"),
        (["seed=1", "+seed=2"], 2, "seed is set twice"),
        (["--setups", "static,magic"], 2, "--setups magic: expected some of static, on_demand,"),
        (["hours=0.01", "--setups", "static"], 2, "not one iteration ends in 0.01 h"),
        (["model={folder}"], 78, "not that of a dense decoder"),
    ],
)
def test_a_bad_word_is_one_line(capsys, tmp_path, words, status, message):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8, "num_experts": 64}))
    assert main(["what-if", *(word.format(folder=tmp_path) for word in words)]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
