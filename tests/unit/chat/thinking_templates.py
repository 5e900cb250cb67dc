"""Small chat templates of models that think, written after what the vendors publish; nothing is downloaded.

Each is faithful in what is tested: what a prompt ends with, what ends a turn, and how an earlier response is
shown. System prompts, tools and images are left out.
"""

from dataclasses import dataclass

from tests.support.tiny_chat import CHATML

_CHATML_PROMPT = "'<|im_start|>assistant\\n'"


def _turns(user: str, assistant: str, prompt: str) -> str:
    """Return a template whose turns are these expressions."""
    return (
        "{%- for message in messages -%}"
        f"{{%- if message.role == 'assistant' -%}}{{{{- {assistant} -}}}}"
        f"{{%- else -%}}{{{{- {user} -}}}}{{%- endif -%}}"
        "{%- endfor -%}"
        f"{{%- if add_generation_prompt -%}}{{{{- {prompt} -}}}}{{%- endif -%}}"
    )


CHATML_THINKING = CHATML.replace(_CHATML_PROMPT, "'<|im_start|>assistant\\n<think>\\n'")
CHATML_SPARED = CHATML.replace(_CHATML_PROMPT, "'<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n'")
DEEPSEEK_R1 = _turns(
    "'<｜User｜>' + message.content",
    "'<｜Assistant｜>' + message.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>'",
    "'<｜Assistant｜><think>\\n'",
)
MINIMAX_M2 = _turns(
    "']~b]user\\n' + message.content + '[e~[\\n'",
    "']~b]ai\\n' + message.content + '[e~[\\n'",
    "']~b]ai\\n<think>\\n'",
)
GLM_4_7 = _turns(
    "'<|user|>' + message.content", "'<|assistant|>' + message.content", "'<|assistant|><think>'"
)
SEED_OSS = _turns(
    "'<seed:bos>user\\n' + message.content + '<seed:eos>'",
    "'<seed:bos>assistant\\n' + message.content + '<seed:eos>'",
    "'<seed:bos>assistant\\n'",
)
MISTRAL = _turns("'[INST]' + message.content + '[/INST]'", "message.content + '</s>'", "''")
KIMI_VL = _turns(
    "'<|im_user|>user<|im_middle|>' + message.content + '<|im_end|>'",
    "'<|im_assistant|>assistant<|im_middle|>' + message.content + '<|im_end|>'",
    "'<|im_assistant|>assistant<|im_middle|>'",
)
COMMAND_A = _turns(
    "'<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + message.content + '<|END_OF_TURN_TOKEN|>'",
    "'<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>' + message.content"
    " + '<|END_RESPONSE|><|END_OF_TURN_TOKEN|>'",
    "'<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'",
)
GEMMA_4 = _turns(
    "'<|turn>user\\n' + message.content + '<turn|>\\n'",
    "'<|turn>model\\n' + message.content + '<turn|>\\n'",
    "'<|turn>model\\n'",
)
GPT_OSS = _turns(
    "'<|start|>user<|message|>' + message.content + '<|end|>'",
    "'<|start|>assistant<|channel|>final<|message|>' + message.content"
    " + ('<|return|>' if loop.last and not add_generation_prompt else '<|end|>')",
    "'<|start|>assistant'",
)


@dataclass(frozen=True)
class Thinking:
    """A template, and what its model writes before and after the end of a thought."""

    template: str
    begin: str
    """The mark that the response itself writes; empty where the prompt ends with it."""
    end: str


THINKING = {
    "qwen3-thinking-2507, qwen3-vl-thinking, qwen3.5, nemotron 3": Thinking(CHATML_THINKING, "", "</think>"),
    "qwen3, smollm3": Thinking(CHATML, "<think>", "</think>"),
    "deepseek-r1": Thinking(DEEPSEEK_R1, "", "</think>"),
    "minimax-m2": Thinking(MINIMAX_M2, "", "</think>"),
    "glm-4.7": Thinking(GLM_4_7, "", "</think>"),
    "seed-oss": Thinking(SEED_OSS, "<seed:think>", "</seed:think>"),
    "magistral": Thinking(MISTRAL, "[THINK]", "[/THINK]"),
    "kimi-vl": Thinking(KIMI_VL, "◁think▷", "◁/think▷"),
    "command-a": Thinking(COMMAND_A, "<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma-4": Thinking(GEMMA_4, "<|channel>thought\n", "<channel|>"),
    "gpt-oss": Thinking(
        GPT_OSS, "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
    ),
    "gpt-oss, with a preamble": Thinking(
        GPT_OSS,
        "<|channel|>commentary<|message|>I add.<|end|><|start|>assistant<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
}
