"""Owners of GPUs, and the demands of `weights=inplace` on the machine."""

import json

import pytest

from rl_agent.engine.model import OLDER
from rl_agent.engine.server import Answer, judge_roots, server_argv, server_environment
from rl_agent.engine.sharing import check_sharing, stays_up, training_devices, training_gpu_count
from rl_agent.errors import ConfigError
from rl_agent.plan.checks import check_weights
from rl_agent.trainer.llamafactory.render import setup_of
from rl_agent.weights.load.vllm_names import AS_STARTED, WORKER_EXTENSION
from tests.unit.engine.test_server import config, plan, publish, value_of

SPLIT = ("engine=gpu", "trainer=llamafactory", "weights=inplace", "weights.engine_gpus=[2,3]")


@pytest.mark.parametrize(
    ("words", "num_gpus", "stays"),
    [
        (["weights=inplace"], 0, True),
        ([], 0, False),
        (["engine=gpu", "trainer=llamafactory", "weights=inplace"], 2, False),
        (["engine=gpu", "trainer=llamafactory_cpu", "weights=inplace"], 2, True),
        (["engine=cpu", "trainer=llamafactory", "weights=inplace"], 2, True),
        (SPLIT, 4, True),
    ],
)
def test_the_engine_stays_up_where_training_does_not_need_its_gpus(tmp_path, words, num_gpus, stays):
    assert stays_up(plan(tmp_path, *words, num_gpus=num_gpus)) is stays


def test_engine_and_training_see_their_own_gpus(tmp_path):
    here = plan(tmp_path, *SPLIT, num_gpus=4)
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    assert server_environment(here.config, environ)["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert server_environment(here.config, {})["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert training_devices(here.config, 4, environ) == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert value_of("--data-parallel-size", server_argv(here)) == "2"
    assert setup_of(here).processes == training_gpu_count(here.config, 4) == 2


def test_without_a_division_nobody_is_shown_other_gpus(tmp_path):
    settings = config(tmp_path, "engine=gpu", num_gpus=2)
    assert "CUDA_VISIBLE_DEVICES" not in server_environment(settings, {})
    assert training_devices(settings, 2, {}) == {}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["weights=inplace"], "would share the GPUs"),
        (["weights.engine_gpus=[0]"], "goes with weights=inplace"),
        (["weights=inplace", "weights.engine_gpus=[1,1]"], "expected different places among 2"),
        (["weights=inplace", "weights.engine_gpus=[2]"], "expected different places among 2"),
        (["weights=inplace", "weights.engine_gpus=[]"], "expected different places among 2"),
        (["weights=inplace", "weights.engine_gpus=[0,1]"], "leaves no GPU"),
    ],
)
def test_a_division_that_cannot_be_is_one_line(tmp_path, words, why):
    settings = config(tmp_path, "engine=gpu", "trainer=llamafactory", *words, num_gpus=2)
    with pytest.raises(ConfigError, match=why):
        check_sharing(settings, 2)


@pytest.mark.parametrize("word", ["engine.host=0.0.0.0", "engine.url=http://10.1.2.3:8999"])
def test_an_engine_that_takes_weights_listens_on_loopback_only(tmp_path, word):
    command = plan(tmp_path).command.model_copy(update={"rl_phase": "both"})
    with pytest.raises(ConfigError, match="would obey anybody"):
        check_weights(config(tmp_path, "weights=inplace", word), command, 0)
    check_weights(config(tmp_path, "weights=inplace"), command, 0)
    check_weights(config(tmp_path, word), command, 0)


def test_an_engine_that_takes_weights_is_not_quantized(tmp_path):
    command, word = plan(tmp_path).command, "+engine.extra_args.quantization=fp8"
    with pytest.raises(ConfigError, match="vLLM may load weights wrongly"):
        check_weights(config(tmp_path, "weights=inplace", word), command, 0)
    check_weights(config(tmp_path, word), command, 0)


def test_weights_do_not_go_between_gpus_that_are_not_there(tmp_path):
    command, words = plan(tmp_path).command, ("pool=elastic", "weights.transport=nccl")
    with pytest.raises(ConfigError, match=r"weights.transport=nccl moves weights between GPUs, and none is"):
        check_weights(config(tmp_path, *words), command, 0)
    check_weights(config(tmp_path, *words, num_gpus=2), command, 2)


def test_only_an_engine_that_takes_weights_opens_the_routes_for_it(tmp_path):
    usual, inplace = plan(tmp_path), plan(tmp_path, "weights=inplace")
    assert value_of("--worker-extension-cls", server_argv(inplace)) == WORKER_EXTENSION
    assert server_environment(inplace.config, {})["VLLM_SERVER_DEV_MODE"] == "1"
    assert "--worker-extension-cls" not in server_argv(usual)
    assert "VLLM_SERVER_DEV_MODE" not in server_environment(usual.config, {})


@pytest.mark.parametrize(
    ("held", "version"),
    [
        ([AS_STARTED, AS_STARTED], 1),
        (404, 1),
        ([2], 2),
        ([2, 2], 2),
        ([1, 2], OLDER),
        ([None], OLDER),
        ([], OLDER),
    ],
)
def test_a_server_is_known_by_what_its_workers_have_taken_since(tmp_path, serve, held, version):
    if held == 404:
        port = serve(404, b"")
    else:
        port = serve(200, json.dumps({"results": [{"weight_version": each} for each in held]}).encode())
    old, _new = publish(tmp_path, 1), publish(tmp_path, 2)
    probe = judge_roots([old], config(tmp_path, "weights=inplace", f"engine.port={port}"))
    assert probe.weight_version == version
    assert probe.answer is (Answer.WANTED if version == 2 else Answer.OLD_VERSION)
    assert judge_roots(["/foreign"], config(tmp_path, "weights=inplace")).answer is Answer.STRANGER
