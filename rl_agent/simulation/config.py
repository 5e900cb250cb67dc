"""Reads the keys of a simulation (configs/simulation/what_if.yaml) and makes its scenario of them."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rl_agent.config.overrides.compose import Schema, compose_words
from rl_agent.config.sections.base import Above0, Count, NotNegative, Positive, Seconds, Section, Seed
from rl_agent.errors import ConfigError
from rl_agent.monitor.flops import ModelShape
from rl_agent.pool.demand.demand import WantedRules
from rl_agent.pool.demand.records import EngineKind
from rl_agent.pool.runtime.scaling import wanted_rules
from rl_agent.pool.settings import load_settings, rules_of
from rl_agent.simulation.scenario import KIND, Scenario, rules_for_simulation
from rl_agent.simulation.speeds import (
    OTHER_TRAINER_TFLOPS,
    SHAPES,
    TRAINER_TFLOPS,
    Device,
    engine_speed,
    trainer_speed,
)
from rl_agent.simulation.spot import Change
from rl_agent.simulation.work import Work, check_trace, drawn_trace, mean_machines

DRAWN_HOURS = 12.0


class WhatIfConfig(Section):
    """Every key of the file."""

    model: str
    seed: Seed
    hours: Annotated[float, Field(gt=0, le=10_000)] | None
    iterations: Positive | None
    trainer_gpus: Positive
    trainer_price: NotNegative
    engine_gpus: Positive
    engine_price: NotNegative
    on_demand_price: NotNegative
    on_demand_engines: Positive | None
    machines: Positive
    up_hours: Above0
    down_hours: Above0
    prompts: Positive
    group_size: Positive
    prompt_tokens: Positive
    mean_tokens: Above0
    longest: Positive
    turns: Positive
    environment_s: NotNegative
    observation_tokens: Count
    length_growth: NotNegative
    sigma: Above0
    mini_batches: Positive
    order: Literal["arrival", "shuffled"]
    max_staleness: Count
    kl_reference: bool
    policy: str
    gpu_tflops: Above0
    gpu_bandwidth_tb_per_s: Above0
    gpu_memory_gb: Above0
    trainer_tflops: Above0 | None
    max_running: Positive
    engine_start_s: NotNegative
    link_gbit_per_s: Above0
    switch_s: NotNegative
    chunk: Positive
    resolution_s: Seconds


WHAT_IF = Schema("simulation/what_if", WhatIfConfig)


def read_config(words: Sequence[str]) -> WhatIfConfig:
    """Return the defaults under `key=value` words. Raises ConfigError."""
    return compose_words(WHAT_IF, words)


def trace_of(config: WhatIfConfig) -> list[Change]:
    """Draw a trace where none is given."""
    return drawn_trace(
        hours=config.hours or DRAWN_HOURS,
        most=config.machines,
        up_s=config.up_hours * 3600,
        down_s=config.down_hours * 3600,
        seed=config.seed,
    )


def scenario_of(config: WhatIfConfig, trace: Sequence[Change], name: str) -> Scenario:
    """Make the scenario of a trace called `name`. Raises ConfigError, or UsageError for a bad trace."""
    check_trace(trace, name)
    until_s = config.hours * 3600 if config.hours else max(trace[-1].at_s, 3600.0)
    shape = shape_of(config.model)
    if config.mean_tokens >= config.longest:
        raise ConfigError(f"mean_tokens={config.mean_tokens:g}: must be below longest={config.longest}")
    engine = engine_speed(
        shape,
        Device(config.gpu_tflops, config.gpu_bandwidth_tb_per_s, config.gpu_memory_gb),
        gpus=config.engine_gpus,
        start_s=config.engine_start_s,
        link_gbit_per_s=config.link_gbit_per_s,
        max_running=config.max_running,
        mean_context=config.prompt_tokens
        + config.mean_tokens
        + (config.turns - 1) / 2 * (config.mean_tokens + config.observation_tokens),
    )
    if engine.capacity < 1:
        raise ConfigError(f"model={config.model}: does not fit on engine_gpus={config.engine_gpus}")
    measured = TRAINER_TFLOPS.get(config.model, OTHER_TRAINER_TFLOPS)
    trainer = trainer_speed(
        shape,
        gpus=config.trainer_gpus,
        tflops_per_gpu=config.trainer_tflops or measured,
        switch_s=config.switch_s,
        has_reference=config.kl_reference,
    )
    mean = mean_machines(trace, until_s)
    rules = rules_of(load_settings((f"policy={config.policy}",), {}))
    return Scenario(
        work=Work(**{field.name: getattr(config, field.name) for field in fields(Work)}),
        trainer=trainer,
        engine=engine,
        trace=tuple(trace),
        until_s=until_s,
        max_staleness=config.max_staleness,
        trainer_price=config.trainer_price,
        engine_price=config.engine_price,
        on_demand_price=config.on_demand_price,
        on_demand_engines=config.on_demand_engines or max(1, round(mean)),
        shared_engines=max(1, config.trainer_gpus // config.engine_gpus),
        rules=rules_for_simulation(rules, config.resolution_s, config.chunk),
        chunk=config.chunk,
        wanted=wanted_of(config, trace),
        iterations=config.iterations,
        seed=config.seed,
    )


def wanted_of(config: WhatIfConfig, trace: Sequence[Change]) -> WantedRules:
    """Return the rules by which machines are asked for: a pool's own, for the machines of the trace."""
    rules = wanted_rules(load_settings((), {}).scale)
    most = max(accumulate(1 if change.is_join else -1 for change in trace))
    kind = EngineKind(
        KIND,
        config.engine_price,
        min_engines=0,
        max_engines=max(1, most),
        start_s=config.engine_start_s,
    )
    return replace(rules, kinds=(kind,))


def shape_of(model: str) -> ModelShape:
    """Return the shape of a known model, or of a `config.json`. Raises ConfigError."""
    if model in SHAPES:
        return SHAPES[model]
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    try:
        shape = ModelShape.of(json.loads(path.read_bytes()))
    except (OSError, ValueError, AttributeError) as error:
        names = ", ".join(SHAPES)
        raise ConfigError(f"model={model}: is none of {names}, nor a config.json that can be read") from error
    if shape is None:
        raise ConfigError(f"model={model}: its configuration is not that of a dense decoder")
    return shape
