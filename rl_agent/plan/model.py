"""Checks that trainer, engines and agent of the run can take the base model, as far as a plan can know."""

from collections.abc import Iterator, Mapping

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.parse import THOUGHTS, opened_thought
from rl_agent.chat.template_trial import check_template_ends
from rl_agent.chat.tokenizer_files import load_tokenizer
from rl_agent.chat.tool_template import tool_format_of
from rl_agent.config.plan import Command, Config
from rl_agent.errors import ConfigError
from rl_agent.plan.hub import FoundModel
from rl_agent.trainer.llamafactory.template import choose_template

_ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def check_model(config: Config, command: Command, model: FoundModel) -> tuple[str, ...]:
    """Refuse a base model that cannot be trained or served; returns what cannot be known yet."""
    from rl_agent.trainer.grpo.model.trainable import VISION_TYPES, obstacle, quantization

    name = config.model.base_model
    if command.rl_phase != "rollout":
        _check_long_rope(config, model)
        if not config.is_streaming:
            choose_template(config.model, model.config or {})
    trains = _trains_by_grpo(config, command)
    if not trains and not config.weights.is_inplace:
        return ()
    who = "trainer=grpo" if trains else "weights=inplace"
    if model.config is None:
        unknown = f"model_config.base_model={name}: nothing is known of it yet"
        return (f"{unknown}; whether {who} can take it is seen after the download",)
    if trains:
        problem = obstacle(model.config)
        if problem is None and model.files and not any(name.endswith(".safetensors") for name in model.files):
            problem = "has its weights as *.bin, and trainer=grpo reads safetensors; save it in that format"
    elif method := quantization(model.config):
        problem = (
            f"is quantized ({method}), and vLLM may load weights wrongly into a quantized engine that runs;"
            " take it without quantization, or weights=restart"
        )
    else:
        problem = None
    if problem is not None:
        raise ConfigError(f"model_config.base_model={name}: {problem}")
    if trains and not config.grpo.freeze_vision_tower and model.config["model_type"] not in VISION_TYPES:
        return (f"trainer.freeze_vision_tower=false changes nothing: {name} is trained as a text model",)
    return ()


def obstacle_of_images(config: Config, command: Command, model: FoundModel) -> str:
    """Name why a model that sees images cannot be trained with them; empty if nothing speaks against it."""
    from rl_agent.trainer.grpo.model.trainable import VISION_TYPES

    settings = model.config or {}
    kind = settings.get("model_type")
    if not _trains_by_grpo(config, command) or "vision_config" not in settings or kind in VISION_TYPES:
        return ""
    return (
        f"model_config.base_model={config.model.base_model}: trainer=grpo trains the text part of {kind}"
        f" alone, and tasks show images; take one of {', '.join(VISION_TYPES)}, or trainer=llamafactory"
    )


def _trains_by_grpo(config: Config, command: Command) -> bool:
    return config.is_streaming and command.rl_phase == "both" and not command.join


def _check_long_rope(config: Config, model: FoundModel) -> None:
    """Refuse a context for which vLLM rotates short sequences by the long factors, and transformers does not.

    vLLM chooses once, by its longest context, so that its cache stays valid; transformers by the sequence.
    """
    settings = model.config or {}
    rope = settings.get("rope_parameters") or settings.get("rope_scaling")
    if not isinstance(rope, Mapping) or (rope.get("rope_type") or rope.get("type")) not in ("longrope", "su"):
        return
    original = rope.get("original_max_position_embeddings", settings.get("original_max_position_embeddings"))
    if isinstance(original, int) and config.engine.max_model_len > original:
        raise ConfigError(
            f"engine.max_model_len={config.engine.max_model_len}: beyond {original} tokens vLLM uses the long"
            f" RoPE of {config.model.base_model} for every sequence and the trainer for longer ones alone;"
            f" set engine.max_model_len={original}"
        )


def check_chat(config: Config, command: Command, model: FoundModel) -> tuple[str, ...]:
    """Refuse a chat template whose tool calls cannot be read, where the agent acts by them.

    Returns notes on how its responses are read.
    """
    if model.folder is not None:
        check_template_ends(model.folder, config.model.chat_template_kwargs)
    if command.rl_phase == "update":
        return ()
    name = f"model_config.base_model={config.model.base_model}"
    if model.folder is None:
        unread = "whether its chat template has tools is seen after the download"
        return (f"{name}: {unread}",) if config.policy_config.has_tool_calls else ()
    chat = ChatTokenizer.load(str(model.folder), config.model.chat_template_kwargs)
    notes = [f"{name}: {note}" for note in _notes_on(chat)]
    if config.policy_config.has_tool_calls:
        written_as = tool_format_of(chat)
        key = "policy_config.action_format=tool_calls"
        notes.append(f"{key}: {config.model.base_model} writes calls as {written_as.name}")
    return tuple(notes)


def _notes_on(chat: ChatTokenizer) -> Iterator[str]:
    """Iterate over what a user should know about how the template begins and ends a response."""
    turns = chat.turns
    if opened := opened_thought(turns.prompt):
        yield f"its prompts begin a thought; a response without {opened.end} has no answer and no tool call"
    if chat.stop_token_ids:
        yield f"its turns end with {chat.turn_ends[0]}, not an eos token of it; it also ends responses"
    elif not chat.turn_ends:
        yield "its chat template puts no token after a response: one ends with an eos token, or at its limit"


def check_serving(config: Config, model: FoundModel, environ: Mapping[str, str]) -> None:
    """Refuse settings with which vLLM would not start on this model."""
    flags = {name.lstrip("-").replace("_", "-") for name in config.engine.extra_args}
    if _ALLOW_LONG not in {*environ, *config.engine.extra_env} and "hf-overrides" not in flags:
        _check_length(config, model)
    _check_reasoning_parser(config, model)


def _check_length(config: Config, model: FoundModel) -> None:
    """Refuse more tokens than the model has positions, where nothing stretches its RoPE."""
    settings = (model.config or {}).get("text_config") or model.config or {}
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    positions = settings.get("model_max_length") or settings.get("max_position_embeddings")  # as vLLM does
    is_plain = isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type", "default")) == "default"
    if is_plain and isinstance(positions, int) and config.engine.max_model_len > positions:
        raise ConfigError(
            f"engine.max_model_len={config.engine.max_model_len}: {config.model.base_model} has {positions}"
            f" positions; set engine.max_model_len={positions}"
        )


def _check_reasoning_parser(config: Config, model: FoundModel) -> None:
    """Refuse a parser of thoughts where the model has no tokens for them."""
    parser = config.model.reasoning_parser
    path = None if model.folder is None else model.folder / "tokenizer.json"
    marks = [
        mark for thought in THOUGHTS if parser in thought.parsers for mark in (thought.begin, thought.end)
    ]
    if not marks or path is None or not path.is_file():
        return
    tokenizer = load_tokenizer(path.parent)
    lacking = [mark for mark in marks if tokenizer.token_to_id(mark) is None]
    if lacking:
        raise ConfigError(
            f"model_config.reasoning_parser={parser}: {config.model.base_model} has no token"
            f" {' and no '.join(lacking)}; for a model that does not think, give"
            " model_config.model_type=qwen3-instruct"
        )
