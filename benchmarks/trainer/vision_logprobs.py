"""Log-probabilities over a thousand turns of a web agent: the trainer's beside those the engine sampled with.

    PYTHONPATH=$PWD/.venv/vision python benchmarks/trainer/vision_logprobs.py [--episodes 100] [--turns 10]
        [--out DIR] [KEY=VALUE …]

A page in a real Chromium draws itself anew twice a second, so that no two screenshots are alike. A tiny
Qwen3-VL with random weights sees the newest three of them at most; what is older is a line. It thinks: its
template begins a thought in each prompt, and would drop that of an earlier turn, whose sampled tokens the
context keeps. A real vLLM samples in fp32 (`run.sh --rl-phase rollout`); then the trainer's model scores all
sequences of each group packed at once, as in a step, and prefixes that turns share are computed once. 1e-4
or more is a failure.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pool.image_requests import SHAPES, make_processor
from benchmarks.trainer.learning import run
from benchmarks.trainer.stream_loop import end_by_chance
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.system.flag_parser import FlagParser
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.data.images import placed_images
from rl_agent.trainer.grpo.data.samples import Segment, make_group
from rl_agent.trainer.grpo.model.policy import PolicyModel, build_model, read_config
from rl_agent.trainer.grpo.model.vision import ImageReader
from rl_agent.types import Trajectory

TOLERANCE = 1e-4
SIBLINGS = 4
WINDOW = 3
MEAN_TOKENS, LONGEST, CONTEXT = 16, 64, 1024
SITE = '''\
from rl_agent.env.web.site import SiteRequest, SiteResponse
from rl_agent.types import Task

PAGE = """<canvas id="c" width="320" height="240"></canvas><script>
const pen = document.getElementById("c").getContext("2d"), some = n => Math.floor(Math.random() * n);
function draw() { for (let i = 0; i < 40; i++) {
  pen.fillStyle = `rgb(${some(256)},${some(256)},${some(256)})`;
  pen.fillRect(some(320), some(240), some(120), some(90)); } }
draw(); setInterval(draw, 500);
</script>"""


class Site:
    start, goal = "/", "Look at the picture."

    def __init__(self, task: Task, seed: int) -> None:
        pass

    def respond(self, request: SiteRequest) -> SiteResponse:
        return SiteResponse(PAGE)

    def reward(self, answer: str | None) -> float | None:
        return None if answer is None else 1.0
'''


def make_model(folder: Path) -> None:
    """Write a model that thinks, whose thoughts and responses end by chance, equally often."""
    from tiny_tokenizer import TURN_END
    from tiny_vision import CHAT_TEMPLATE, MEDIA
    from tokenizers import AddedToken, Tokenizer
    from transformers import Qwen3VLForConditionalGeneration

    SHAPES["seen"] = SHAPES["tiny"] | {"max_pixels": 320 * 256}
    config = make_processor(folder, "seen", CONTEXT)
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in ("<think>", "</think>")])
    tokenizer.save(str(path))
    said, prompted = "message['content'] -}}{%- else", "assistant\\n"
    template = CHAT_TEMPLATE.replace(said, said.replace("']", "'].split('</think>')[-1]"))
    template = template.replace(prompted, f"{prompted}<think>\\n")
    assert template.count("think>") == 2
    (folder / "chat_template.jinja").write_text(template)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"chat_template": template}))
    config.text_config.vocab_size = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(config).eval()
    end, close = map(tokenizer.token_to_id, (TURN_END, "</think>"))
    end_by_chance(model, end, MEAN_TOKENS, never=[tokenizer.token_to_id(token) for token in MEDIA])
    with torch.no_grad():
        model.lm_head.weight[close] = model.lm_head.weight[end]
    model.generation_config.eos_token_id = end
    model.save_pretrained(folder)


def collect(out: Path, options: argparse.Namespace) -> list[Trajectory]:
    """Play the episodes, or read those of an earlier call."""
    paths = RunPaths(out / "run")
    if not (out / "model").exists():
        make_model(out / "model")
    (out / "site").mkdir(exist_ok=True)
    (out / "site" / "site.py").write_text(SITE)
    task = {"prompt": "Look.", "env": "web", "site": "picture", "difficulty": "easy"}
    count = max(options.episodes // SIBLINGS, 1)
    lines = "".join(json.dumps(task | {"task_id": f"picture-{n}"}) + "\n" for n in range(count))
    for split in ("train", "test"):
        (out / f"{split}.jsonl").write_text(lines)
    command: list[str | Path] = ["bash", PROJECT_ROOT / "scripts" / "run.sh"]
    command += ["--data-path", out, "--log-path", paths.log_path, "--rl-phase", "rollout"]
    command += ["--rollout-split", "train-only", "--max-iterations", "1"]
    settings = [
        "engine=cpu",
        f"engine.port={free_port()}",
        f"engine.max_model_len={CONTEXT}",
        f"model_config.base_model={out / 'model'}",
        f"policy_config.max_new_tokens={LONGEST}",
        f"context.max_images={WINDOW}",
        f"rollout.group_size={SIBLINGS}",
        "rollout.max_vllm_sessions=12",
        "rollout.completion_threshold=1.0",
        "env_config.train_tasks_rollout_size=-1",
        f"env_config.train_difficulty_max_steps={{easy: {options.turns}}}",
        f"+env_config.kwargs.web.sites.picture={out / 'site'}",
        "+env_config.kwargs.web.width=320",
        "+env_config.kwargs.web.height=256",
    ]
    if not paths.shard("train", 1).exists():
        run([*command, *settings, *options.overrides], out / "run.log")
    return list(read_iteration(paths, "train", 1, TRAJECTORY))


def load(folder: Path) -> PolicyModel:
    """Load the model as the trainer has it on a CPU."""
    model = build_model(read_config(folder), activation_checkpointing=0.0).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    policy = PolicyModel(model, temperature=1.0, chunk_tokens=2048)
    policy.reader, policy.shares_prefixes = ImageReader.load(folder, model), True
    return policy


@torch.no_grad()
def differences(policy: PolicyModel, segments: Sequence[Segment]) -> torch.Tensor:
    """Return the absolute differences for all response tokens of these sequences, scored at once."""
    rows = []
    for number, segment in enumerate(segments):
        placed = placed_images(segment, policy.image_token)
        assert placed, "a sequence without its images"
        rows.append(Row(segment, 1.0, int(segment.is_response.sum()), number, tuple(placed)))
    batch = pack(rows, torch.device("cpu"), shares=True, reader=policy.reader)
    logprobs: torch.Tensor = policy(batch)[0]
    return (logprobs - batch.behaviour).abs()


def measure(out: Path, options: argparse.Namespace) -> None:
    """Print what was compared. Raises AssertionError where what was to be measured did not happen."""
    episodes = sorted(collect(out, options), key=lambda episode: (episode.key.task_id, episode.key.attempt))
    policy, found, shown = load(out / "model"), [], Counter[int]()
    for _, siblings in groupby(episodes, lambda episode: episode.key.task_id):
        group = make_group(siblings)
        segments = [segment for sample in group.samples for segment in sample.segments]
        shown.update(len(segment.images) for segment in segments)
        found.append(differences(policy, segments))
        print(
            f"{sum(map(len, found)):,} tokens, largest difference {max(map(torch.max, found)):.2g}",
            flush=True,
        )
    turns = [step for episode in episodes for step in episode.steps]
    images = {path for step in turns for path in step.observation.images}
    thoughts = sum("</think>" in step.generation.text for step in turns)
    every = torch.cat(found).sort().values
    assert len(every) == sum(len(step.generation.token_ids) for step in turns), "not every turn was scored"
    assert len(images) == len(turns), f"{len(images)} screenshots in {len(turns)} turns"
    assert thoughts and shown[WINDOW], "no thought, or no full window"
    print(f"\n{len(episodes)} episodes, {len(turns):,} turns, each with a screenshot of its own")
    print(f"responses with a thought that ends: {thoughts:,}")
    print(f"sequences by their images: {dict(sorted(shown.items()))}")
    print(f"{len(every):,} sampled tokens; absolute differences of log-probabilities:")
    print(f"mean {every.mean():.2g}, 99.9 % {every[int(0.999 * len(every))]:.2g}, largest {every[-1]:.2g}")
    assert every[-1] < TOLERANCE, f"the largest is not below {TOLERANCE}"


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100, help=f"in groups of {SIBLINGS}")
    parser.add_argument("--turns", type=int, default=10, help="of an episode")
    parser.add_argument("--out", type=Path, help="model, run and log (default: temporary)")
    parser.add_argument("overrides", nargs="*", help="key=value for run.sh")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vision-logprobs-") as folder:
        out = (options.out or Path(folder)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        measure(out, options)


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
