"""The YAML for LLaMA-Factory."""

import json

import pytest
import yaml
from omegaconf import OmegaConf

from rl_agent.config.plan import Hardware
from rl_agent.errors import ConfigError
from rl_agent.paths import CONFIG_DIR
from rl_agent.trainer.llamafactory.render import (
    TrainingStart,
    check_extra_args,
    deepspeed_file,
    setup_of,
    to_yaml,
    training_arguments,
)
from tests.integration.tiny_model import make_plan

START = TrainingStart("/models/base", {})


@pytest.fixture
def plan_of(tmp_path):
    def make(*overrides: str, gpus: int = 0):
        plan = make_plan(tmp_path / "log", tmp_path / "base", *overrides)
        return plan.model_copy(update={"hardware": Hardware(num_gpus=gpus, cores=2, memory_gib=8.0)})

    return make


def rendered(plan, start=START, *, iteration=3, has_validation=False):
    return training_arguments(plan, iteration, start, setup_of(plan), has_validation=has_validation)


def test_the_yaml_holds_every_field_of_a_full_update(plan_of):
    plan = plan_of()
    arguments = rendered(plan)
    assert arguments["stage"] == "sft"
    assert arguments["do_train"] is True
    assert arguments["model_name_or_path"] == "/models/base"
    assert "template" not in arguments  # nothing is known of this model
    assert arguments["dataset"] == "rl_agent_train"
    assert arguments["tokenized_path"] == str(plan.paths.update_dir(3) / "dataset")
    assert arguments["output_dir"] == str(plan.paths.training_dir(3))
    assert arguments["run_name"] == "test-iteration3"
    assert arguments["report_to"] == "none"
    assert arguments["finetuning_type"] == "full"
    expected = {
        *("overwrite_output_dir", "trust_remote_code", "cutoff_len", "learning_rate", "image_max_pixels"),
        *("per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm", "num_train_epochs"),
        *("logging_steps", "save_strategy", "lr_scheduler_type", "weight_decay", "warmup_steps"),
        *("save_steps", "save_total_limit", "dataloader_num_workers", "bf16"),
        *("remove_unused_columns", "save_only_model", "dataloader_pin_memory", "gradient_checkpointing"),
        *("seed", "use_cpu"),
    }
    assert expected <= arguments.keys()


def test_a_null_is_left_out(plan_of):
    arguments = rendered(plan_of())
    absent = {"warmup_ratio", "max_steps", "deepspeed", "resume_from_checkpoint", "ignore_data_skip"}
    assert absent.isdisjoint(arguments)
    assert None not in arguments.values()


def test_seeds_differ_between_iterations(plan_of):
    plan = plan_of("seed=10")
    seeds = [rendered(plan, iteration=iteration)["seed"] for iteration in (1, 2)]
    assert seeds == [11, 12]


def test_evaluation_keys_need_examples_to_evaluate_on(plan_of):
    plan = plan_of("trainer.do_eval=true")
    with_some = rendered(plan, has_validation=True)
    assert with_some["eval_dataset"] == "rl_agent_validation"
    assert with_some["eval_strategy"] == "epoch"
    assert "do_eval" not in rendered(plan, has_validation=False)


def test_lora_keys_are_there_only_for_lora(plan_of):
    lora = rendered(plan_of("trainer.finetuning_type=lora", "trainer.lora_rank=4"))
    assert (lora["lora_rank"], lora["lora_alpha"], lora["lora_target"]) == (4, 16, "all")
    assert not any(key.startswith("lora") for key in rendered(plan_of()))


def test_a_continued_training_resumes_without_skipping_examples(plan_of, tmp_path):
    start = TrainingStart("/models/v1", {}, resume_from=tmp_path / "resume", max_steps=18)
    arguments = rendered(plan_of(), start)
    assert arguments["resume_from_checkpoint"] == str(tmp_path / "resume")
    assert arguments["ignore_data_skip"] is True
    assert arguments["max_steps"] == 18


def test_template_and_recomputation_follow_from_the_models_config(plan_of):
    config = {
        **{"model_type": "mllama", "vision_config": {}, "vocab_size": 128_000, "hidden_size": 8192},
        **{"intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64},
    }
    plan = plan_of("trainer=llamafactory", gpus=1)
    gpu = plan.hardware.model_copy(update={"gpu_memory_gib": 80.0})
    arguments = rendered(plan.model_copy(update={"hardware": gpu}), TrainingStart("org/of-the-hub", config))
    assert (arguments["template"], arguments["gradient_checkpointing"]) == ("mllama", True)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("trainer.peer_timeout_s=90",), "ddp_timeout", 90),
        (("+trainer.extra_args.report_to=[wandb,tensorboard]",), "report_to", ["wandb", "tensorboard"]),
        (("+trainer.extra_args.flash_attn=sdpa",), "flash_attn", "sdpa"),
        (("+trainer.extra_args.seed=null",), "seed", None),
    ],
    ids=["a wait for peers", "Trainer's own reporting", "an extra argument", "null removes a key"],
)
def test_a_setting_is_an_argument_of_the_training(plan_of, words, name, value):
    assert yaml.safe_load(to_yaml(rendered(plan_of(*words)))).get(name) == value


def test_an_extra_argument_about_how_samples_are_made_is_refused(plan_of):
    plan = plan_of("+trainer.extra_args.packing=true")
    message = r"trainer\.extra_args\.packing: LLaMA-Factory does not read it here"
    with pytest.raises(ConfigError, match=message):
        check_extra_args(plan.config.llamafactory)
    check_extra_args(plan_of("+trainer.extra_args.packing=null").config.llamafactory)


@pytest.mark.parametrize(
    ("gpus", "overrides", "expected"),
    [
        (0, (), (True, False, 1)),
        (0, ("trainer.nproc_per_node=2",), (True, False, 2)),
        (8, ("trainer=llamafactory",), (False, True, 8)),
        (8, ("trainer=llamafactory", "trainer.nproc_per_node=4"), (False, True, 4)),
        (8, ("trainer=llamafactory", "trainer.use_cpu=true"), (True, False, 1)),
        (8, ("trainer=llamafactory", "trainer.bf16=false"), (False, False, 8)),
    ],
)
def test_automatic_values_come_from_the_machine(plan_of, gpus, overrides, expected):
    setup = setup_of(plan_of(*overrides, gpus=gpus))
    assert (setup.uses_cpu, setup.bf16, setup.processes) == expected


def test_nodes_multiply_the_processes_that_train_together(plan_of):
    plan = plan_of("trainer.nproc_per_node=2")
    assert setup_of(plan).world_size == 2
    assert setup_of(plan, nodes=3).world_size == 6


def test_deepspeed_is_a_known_name_or_a_file(tmp_path):
    own = tmp_path / "mine.json"
    own.write_text("{}")
    assert deepspeed_file("zero2") == CONFIG_DIR / "deepspeed" / "zero2.json"
    assert deepspeed_file(str(own)) == own
    assert deepspeed_file(None) is None
    with pytest.raises(ConfigError, match=r"trainer\.deepspeed=zero9: is neither one of zero1, zero2, zero3"):
        deepspeed_file("zero9")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_files_leave_to_the_trainer_what_it_knows(stage):
    settings = json.loads((CONFIG_DIR / "deepspeed" / f"zero{stage}.json").read_bytes())
    assert settings["zero_optimization"]["stage"] == stage
    automatic = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert {settings[key] for key in (*automatic, "gradient_clipping")} == {"auto"}
    assert not {"optimizer", "scheduler"} & settings.keys()


@pytest.mark.parametrize("text", ["/a b/ü", "${seed}", "'\"", "a: b # c", "/tmp/${HOME}/x", "yes", "null"])
def test_llamafactory_reads_back_every_text_unchanged(text):
    assert OmegaConf.to_container(OmegaConf.create(to_yaml({"path": text})))["path"] == text


def test_small_learning_rates_stay_numbers():
    assert yaml.safe_load(to_yaml({"learning_rate": 1e-6}))["learning_rate"] == 1e-6
