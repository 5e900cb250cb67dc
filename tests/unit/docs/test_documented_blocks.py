"""Every command that a page shows, in whatever block or sentence, is one that would start.

`documented_blocks` types the pages into a bash without programs. What would have started is followed here,
through sbatch, ssh, containers, Ray and SkyPilot, to a parser of this project. A program that no check knows
is a failure.
"""

import argparse
import re
import runpy
import shlex
import tempfile
from collections.abc import Callable, Sequence
from itertools import dropwhile, pairwise
from pathlib import Path

import pytest
import yaml

from rl_agent.autoscaler.catalog import CATALOG
from rl_agent.cli.__main__ import module_of
from rl_agent.config.overrides.compose import RUN, Schema, compose
from rl_agent.config.overrides.words import parse_override
from rl_agent.config.plan import Config
from rl_agent.config.sections.env import EnvConfig
from rl_agent.errors import HarnessError
from rl_agent.paths import PROJECT_ROOT
from rl_agent.plan import arguments
from rl_agent.pool.api.openai_api import OpenAiApi
from rl_agent.pool.api.routes import PoolApi
from rl_agent.pool.api.weights_api import WeightsApi
from rl_agent.pool.settings import MANAGER
from rl_agent.simulation.config import read_config
from tests.unit.docs.documented_blocks import PAGES, Typed, blocks, started_programs, typed_commands

DOCKERFILE = (PROJECT_ROOT / "docker" / "Dockerfile").read_text()
ELSEWHERE = {
    *("aws", "base64", "chmod", "cp", "dirname", "gcloud", "grep", "head", "gym", "hf", "id", "ls", "mkdir"),
    *("openssl", "pip", "readlink", "sleep", "squeue", "tail", "which", "xargs"),
}
"""Programs that are not ours, and start nothing of ours."""
OF_OTHER_PROJECTS = {"examples/data_preprocess/openr1.py", "verl/trainer/main_ppo.py"}

COMMANDS: list[Typed] = []
with tempfile.TemporaryDirectory() as reader:
    for page in PAGES:
        COMMANDS += typed_commands(page, Path(reader))


def known(words: Sequence[str]) -> list[str]:
    """Leave out what a page leaves to the reader, `…`; as the value of a flag it is some number."""
    before = ["", *words]
    matches = [
        "1" if word == "…" and flag.startswith("--") else word
        for flag, word in zip(before, words, strict=False)
    ]
    return [word for word in matches if "…" not in word]


def check_keys(words: Sequence[str], schema: Schema) -> None:
    """Keys, options of groups and the types of values are right, and together they make a configuration."""
    overrides = [parse_override(word, "the page", {}) for word in words]
    compose(schema, [word for word in overrides if "PATH" not in word.raw])


def check_run(words: list[str]) -> None:
    words = known(words)
    if arguments.wants_help(words):
        return
    flags, overrides = arguments._split(words)
    paths = [f"{name}={flags.get('--' + name.replace('_', '-'), '/x')}" for name in ("data_path", "log_path")]
    check_keys([*overrides, *paths], RUN)


def check_verb(words: list[str]) -> None:
    """A verb's own parser takes its words, and what it passes on is right, too."""

    class Parsed(BaseException):
        pass

    matches = []
    parser_class = argparse.ArgumentParser

    def stopping(parse):
        def parse_and_stop(parser, *given):
            options, rest = parse(parser, *given)
            if rest:
                parser.error(f"unknown words {rest}")
            matches.append(options)
            raise Parsed

        return parse_and_stop

    name, *rest = words
    if name == "VERB":
        return
    module = module_of(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser_class, "parse_args", stopping(parser_class.parse_known_args))
        patch.setattr(
            parser_class, "parse_intermixed_args", stopping(parser_class.parse_known_intermixed_args)
        )
        if rest:
            with pytest.raises(Parsed):
                module.main(rest)
    if not matches:  # a page names the verb
        return
    (options,) = matches
    if name == "manager":
        check_keys(options.settings, MANAGER)
    elif name == "what-if":
        read_config(options.words)
    elif name == "pool" and rest[0] == "scale":
        fields = CATALOG[options.provider].settings.model_fields
        assert {word.partition("=")[0] for word in options.settings} <= set(fields)


def check_bash(words: list[str]) -> None:
    script, *rest = words
    script = script[script.rindex("scripts/") :]
    text = (PROJECT_ROOT / script).read_text()
    if script == "scripts/run.sh":
        check_run(rest)
    elif script == "scripts/join_pool.sh":
        check_verb(["join-pool", *known(rest)])
    elif script == "scripts/emulate_spot.sh":
        runpy.run_path(str(PROJECT_ROOT / script.replace(".sh", ".py")))["make_parser"]().parse_args(rest)
        if "--" in rest:
            check_verb(["join-pool", *rest[rest.index("--") + 1 :]])
    elif "run_experiment " in text:
        check_run(rest)
    elif "join_pool.sh" in text and "exec" in text and script.endswith("worker.sh"):
        assert f"\n    {rest[0]}) " in text
        check_verb(["join-pool", *rest[1:]])
    elif script.endswith("local_machines.sh"):
        assert f"local_machines.sh {rest[0]} " in " ".join(text.split())
        if rest[2:]:
            check_program(rest[2:])
    else:
        check_usage(text, rest)


def check_usage(text: str, words: list[str]) -> None:
    """The comment at the top of a script names these flags and choices; of Python, its parser has them."""
    for flag, word in zip(["", *words], words, strict=False):
        if "=" in word and not word.startswith("-"):
            check_keys([word], RUN)
        elif word.startswith("--"):
            assert word.partition("=")[0] in text
        elif "/" not in word and flag in ("", "--agent", "--trainer", "--trainers"):
            assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)


def check_python(words: list[str]) -> None:
    words = words[words[0] == "-P" :]
    if words[0] == "-m" and words[1] == "rl_agent.cli":
        if words[2:]:
            check_verb(words[2:])
    elif words[0] == "-m" and words[1] == "pytest":
        assert all((PROJECT_ROOT / word).exists() for word in words if "/" in word)
    elif words[0] == "-m" and words[1] == "venv":
        pass
    else:
        path = words[1].replace(".", "/") + ".py" if words[0] == "-m" else words[0]
        if path not in OF_OTHER_PROJECTS:
            check_usage((PROJECT_ROOT / path).read_text(), words[1 + (words[0] == "-m") :])


def check_sbatch(words: list[str]) -> None:
    """A file of ours, and its words as that file passes them on."""
    behind = list(dropwhile(lambda word: word.startswith("-") or "…" in word, words))
    if not behind:
        return
    file, *rest = behind
    assert (PROJECT_ROOT / file).read_text().count("#SBATCH")
    if file.endswith("join_pool.sbatch"):
        check_verb(["join-pool", *rest])
    else:
        assert file.removeprefix("scripts/slurm/") in ("run.sbatch", "join.sbatch")
        check_run(rest)


def check_docker(words: list[str]) -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)", DOCKERFILE, re.MULTILINE))
    if words[0] == "build":
        assert "-f" not in words or (PROJECT_ROOT / words[words.index("-f") + 1]).exists()
        assert "--target" not in words or words[words.index("--target") + 1] in stages
    elif words[0] == "run":
        at = next(n for n, word in enumerate(words) if word.startswith("rl-agent:"))
        stage, rest = words[at].partition(":")[2], words[at + 1 :]
        if "--entrypoint" in words:
            return check_program([words[words.index("--entrypoint") + 1], *rest])
        entry = re.search(rf"AS {stage}\nENTRYPOINT (\[.*\])", DOCKERFILE)
        check_program([*yaml.safe_load(entry[1])[2:], *rest])
    else:
        assert words[0] in ("push", "stop")
    return None


def check_kubectl(words: list[str]) -> None:
    """Files that are there, and the names that the manifests give."""
    text = "".join(path.read_text() for path in (PROJECT_ROOT / "scripts" / "kubernetes").rglob("*.yaml"))
    if "--kustomize" in words:
        assert (PROJECT_ROOT / words[words.index("--kustomize") + 1] / "kustomization.yaml").exists()
    if "--namespace" in words:
        assert f"namespace: {words[words.index('--namespace') + 1]}" in text
    named = [word.partition("/")[2] for word in words if word.startswith(("service/", "job/"))]
    named += [words[n + 1] for n, word in enumerate(words) if word in ("namespace", "generic")]
    named += [words[words.index("secret") + 1]] if "get" in words else []
    for name in named:
        assert f"name: {name}" in text, name


def check_sky(words: list[str]) -> None:
    files = [word for word in words if word.endswith(".yaml")]
    assert files or words[0] in ("check", "down", "status")
    for file in files:
        task = yaml.safe_load((PROJECT_ROOT / file).read_text())
        for flag, word in pairwise(words):
            name, _, value = word.partition("=")
            assert flag != "--env" or name in task["envs"], name
            assert flag != "--secret" or name in task["secrets"], name
            if flag == "--env" and name == "RUN_ARGUMENTS":
                check_run(shlex.split(value))


def check_ray(words: list[str]) -> None:
    if "--" in words:
        check_program(words[words.index("--") + 1 :])
    else:
        assert words[0] == "start"


def check_curl(words: list[str]) -> None:
    """A route that the manager has, or one of Ray's."""
    apis = [object.__new__(api) for api in (PoolApi, OpenAiApi, WeightsApi)]
    vars(apis[0])["_weights"] = apis[2]
    routes = [route.path for api in apis for route in api.routes()]
    routes = [re.sub(r"{\w+}", r"\\w+", route) for route in routes]
    for word in words:
        path = re.sub(r"^https?://[^/]+|\?.*$", "", word)
        is_other = not word.startswith("http") or ":8265/" in word
        assert is_other or any(re.fullmatch(route, path) for route in routes), path


def check_vllm(words: list[str]) -> None:
    """Its flags are vLLM's own; what they name of this project is there."""
    for flag, word in pairwise(words):
        if flag == "--worker-extension-cls":
            module, _, name = word.rpartition(".")
            assert f"class {name}" in (PROJECT_ROOT / f"{module.replace('.', '/')}.py").read_text()


def check_inner(words: list[str]) -> None:
    """Check the command that `srun` and `nohup` start, behind their options."""
    behind = list(dropwhile(lambda word: word.startswith("-") or word.isdigit(), words))
    if behind:
        check_program(behind)


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "bash": check_bash,
    "python": check_python,
    "jq": lambda words: None,
    "python3": check_python,
    "sbatch": check_sbatch,
    "docker": check_docker,
    "kubectl": check_kubectl,
    "sky": check_sky,
    "ray": check_ray,
    "curl": check_curl,
    "srun": check_inner,
    "nohup": check_inner,
    "ssh": lambda words: None,  # what it starts there is typed in by itself
    "vllm": check_vllm,
}


def check_program(words: Sequence[str]) -> None:
    name = words[0]
    assert name in CHECKS or name in ELSEWHERE, f"no check knows the program {name!r}"
    if name in CHECKS:
        CHECKS[name](list(words[1:]))


@pytest.mark.usefixtures("own_policies")
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_that_a_page_shows_would_start(command):
    check_program(command.words)


@pytest.mark.parametrize(
    "wrong",
    [
        "bash scripts/run.sh --rl-phase both trainer.learning_rat=1",
        "bash scripts/run.sh --rl-fase both",
        "bash scripts/run.sh --rl-phase both trainer=gpro",
        "bash scripts/quickstart.sh --agent dog",
        "bash scripts/examples/openr1_worker.sh 3b",
        "bash scripts/emulate_spot.sh --gpus-each 2 -- --mangaer http://HOST:5000",
        "python -m rl_agent.cli doctor --log-pth exp",
        "python -m rl_agent.cli manager scale.kind=[]",
        "python benchmarks/trainer/learning.py --sead 1",
        "sbatch --nodes=2 scripts/slurm/run.sbatch --data-pth x",
        "srun --ntasks=1 python -m rl_agent.cli doctr",
        "docker build --target train -f docker/Dockerfile .",
        "docker run rl-agent:rollout --mangaer http://HOST:5000",
        "kubectl --namespace rl-pol logs job/trainer",
        "kubectl apply --kustomize scripts/kubernetes/pools",
        "sky launch scripts/skypilot/worker.yaml --env MODEL=x",
        "curl http://HOST:5000/statu",
        "slurp it",
    ],
)
def test_a_command_that_would_not_start_is_found(wrong):
    with pytest.raises((AssertionError, HarnessError, KeyError, OSError, StopIteration, SystemExit)):
        check_program(wrong.split())


def test_a_bash_without_programs_reports_the_arguments_of_each_even_late(tmp_path):
    script = """
run=(--nodes "a b")   # don't
for n in 1 2; do bash x.sh "${run[@]}" --rank $n | tail; done
ssh host "nohup bash ${run[*]@Q} &"
{ for ((n = 0; n < 100000; n++)); do :; done; python late.py; } >late.log 2>&1 &
"""
    assert sorted(started_programs(script, tmp_path)) == [
        ("bash", "x.sh", "--nodes", "a b", "--rank", "1"),
        ("bash", "x.sh", "--nodes", "a b", "--rank", "2"),
        ("python", "late.py"),
        ("ssh", "host", "nohup bash '--nodes' 'a b' &"),
        ("tail",),
        ("tail",),
    ]


FILES = [(page, text) for page in PAGES for text in blocks(page, "yaml")]


@pytest.mark.parametrize(("page", "text"), FILES, ids=lambda value: getattr(value, "stem", ""))
def test_a_settings_file_of_a_page_belongs_to_a_provider_or_a_run(page, text, monkeypatch):
    monkeypatch.setenv("RL_AGENT_POOL_TOKEN", "a token of at least sixteen bytes")
    values = yaml.safe_load(text)
    models = [entry.settings for entry in CATALOG.values()]
    if provider := next((model for model in models if set(values) <= set(model.model_fields)), None):
        provider.model_validate(values | {"manager": "http://127.0.0.1:5000", "fleet": "pool"})
    else:
        assert set(values) <= {*Config.model_fields, *EnvConfig.model_fields}
