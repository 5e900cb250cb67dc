"""Configuration of `trainer=grpo`, which its processes take in the same sections; nothing has a default."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rl_agent.config.sections.base import (
    Above0,
    AtLeast2,
    Count,
    NotNegative,
    Positive,
    Seconds,
    Section,
    Share,
)

Estimator = Literal["grpo", "dr_grpo", "rloo", "reinforce"]
Normalization = Literal["token_mean", "sequence_mean", "dr_grpo"]
PolicyLoss = Literal["ppo", "gspo", "cispo", "sapo"]
Correction = Literal["none", "truncate", "mask"]
SequenceMask = Literal["none", "product", "geometric"]
KlEstimator = Literal["k1", "k2", "k3"]
Placement = Literal["disaggregated", "shared", "colocated", "hybrid"]


class LossSettings(Section):
    """The objective; `trainer.losses` and `trainer.advantages` have the equations."""

    advantage: Estimator
    rewards: Literal["together", "each"]
    """The way in which an episode with several named rewards is compared with its siblings."""
    reward_weights: dict[str, float]
    drop_uninformative: bool
    """Leave groups without an advantage out; others are sampled in their place (DAPO's dynamic sampling)."""
    normalization: Normalization
    constant_length: Positive
    """The constant of `dr_grpo`, in tokens."""
    policy_loss: PolicyLoss
    sapo_temperature_positive: Above0
    sapo_temperature_negative: Above0
    clip_low: NotNegative
    clip_high: NotNegative
    dual_clip: Annotated[float, Field(gt=1)] | None
    proximal: Literal["iteration", "current", "behaviour"]
    """The reference of clipping: the weights that the iteration began with, those that this very step starts
    from, or the engine's logprobs."""
    correction: Correction
    correction_low: NotNegative
    correction_high: Above0
    sequence_mask: SequenceMask
    """The weight of a whole sequence by which it is left out of the loss."""
    sequence_mask_bound: Annotated[float, Field(gt=1)] | None
    """A sequence is left out if its weight is above this, or below the reciprocal."""
    kl_in: Literal["none", "loss", "reward"]
    kl_estimator: KlEstimator
    kl_coefficient: NotNegative
    entropy_coefficient: float
    temperature: Above0
    """The temperature of the sampling; logits are divided by it."""
    overlong: Literal["keep", "mask", "penalty"]
    """The treatment of responses that are cut off, or nearly: `rollout.comparison` has the equation."""
    overlong_cache: Positive | None
    """Tokens before the longest response in which the penalty grows; None: a fifth of it, as DAPO has it."""
    overlong_penalty: NotNegative
    longest_response: Positive
    """The length in tokens at which a response is cut off."""

    @model_validator(mode="after")
    def _fits_together(self) -> "LossSettings":
        if self.proximal == "behaviour" and self.correction != "none":
            raise _refusal("correction", "none: the proximal policy is the behaviour policy already")
        if self.proximal == "behaviour" and self.sequence_mask != "none":
            raise _refusal("sequence_mask", "none: the proximal policy is the behaviour policy already")
        is_corrected = self.correction != "none" or self.sequence_mask != "none"
        uses_engine_logprobs = self.proximal == "behaviour" or is_corrected
        if self.temperature != 1 and uses_engine_logprobs:
            raise _refusal("temperature", "1: engines report logprobs as they are before the temperature")
        if self.overlong == "penalty" and self.penalized_tokens >= self.longest_response:
            raise _refusal("overlong_cache", f"below longest_response, {self.longest_response} tokens")
        if self.rewards == "each" and (self.kl_in == "loss" or self.entropy_coefficient):
            reason = (
                "together with kl_in=loss or an entropy bonus: GDPO divides the advantages of a step by their"
                " deviation, which is known when the gradient has been computed"
            )
            raise _refusal("rewards", reason)
        if self.drop_uninformative and self.kl_in == "reward":
            reason = (
                "false with kl_in=reward: the KL makes advantages differ where rewards are equal, and is not"
                " known where other groups are sampled; kl_in=loss goes with it"
            )
            raise _refusal("drop_uninformative", reason)
        if self.kl_in == "loss" and self.kl_estimator == "k1":
            reason = (
                "k2 (on average the gradient of KL(policy‖reference)) or k3 (that of KL(reference‖policy))"
                " with kl_in=loss: the average gradient of k1 in the loss is 0"
            )
            raise _refusal("kl_estimator", reason)
        if self.kl_in == "reward" and self.kl_estimator != "k1":
            reason = (
                f"k1 with kl_in=reward: {self.kl_estimator} in the reward has an average gradient of next"
                " to 0 as long as the policy is near the reference; k2 and k3 are for kl_in=loss"
            )
            raise _refusal("kl_estimator", reason)
        return self

    @property
    def largest_sequence_weight(self) -> float:
        """`sequence_mask_bound`, settled: a mean over tokens is nearer to 1 than their product."""
        return self.sequence_mask_bound or (1.01 if self.sequence_mask == "geometric" else 2.0)

    @property
    def penalized_tokens(self) -> int:
        """`overlong_cache`, settled."""
        return self.overlong_cache or max(self.longest_response // 5, 1)


class LoraSettings(Section):
    """Adapters that are trained in place of the weights."""

    rank: Positive | None
    """None: all weights are trained."""
    alpha: Positive
    """An adapter counts alpha / rank."""
    targets: Literal["all-linear"] | tuple[str, ...]
    """Names of the layers that get one; all-linear: all but the output layer."""
    publish: Literal["merged", "adapter"]
    """Engines get all weights with the adapter in them, or it alone, for the base model that they have."""

    @property
    def is_published_alone(self) -> bool:
        """Return whether engines get an adapter and not weights."""
        return self.rank is not None and self.publish == "adapter"

    @field_validator("targets")
    @classmethod
    def _are_inside(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not targets or {"lm_head", "embed_tokens"} & set(targets):
            raise ValueError("must be all-linear, or names of linear layers: q_proj, down_proj, ...")
        return targets


class BatchSettings(Section):
    token_budget: Positive
    """Most tokens of a micro-batch."""
    logits_chunk_tokens: Positive
    max_staleness: Count
    """The largest age of a sample, in weight versions."""
    allow_mixed_versions: bool
    """True if an episode may span several versions; else engines finish one before they take the next."""
    finish_timeout_s: Annotated[float, Field(gt=0, le=86_400)]
    """An engine that has not finished by then takes it all the same."""
    order: Literal["arrival", "shuffled"]
    """The order of training: whole groups as they arrive, or samples that were drawn for each step
    beforehand."""

    @property
    def finish_within_s(self) -> float | None:
        """The deadline that engines are given; None where they take a version at once."""
        return None if self.allow_mixed_versions else self.finish_timeout_s


class ParallelSettings(Section):
    shard_size: Positive | None
    """Ranks that share one copy of the weights; 1: each has its own (DDP); null: all share one (FSDP)."""
    reshard_after_forward: bool | None
    """Let go of a layer's weights when it has computed. None: yes, but those of a small model stay."""
    precision: Literal["bf16", "fp32"] | None
    """The precision of the computation; weights, gradients and moments are fp32. None: bf16 on a GPU, fp32 on
    a CPU."""
    activation_checkpointing: Share | None
    """Share of the layers that compute their activations again in the backward pass. None: by memory."""
    offload_optimizer: bool | None
    """Keep the moments in host memory. None: by memory."""
    compile_layers: bool | None
    """Compile each layer. None: on a GPU, those of a small model, unless Liger's kernels are asked for."""
    use_liger_kernel: bool | None
    """Norms, rotations and SwiGLU as one kernel each. None: on a GPU, where they can be had and no layers are
    compiled."""
    peer_timeout_s: Seconds
    """Longest wait of a rank for the others."""

    @property
    def recomputed_share(self) -> float:
        """`activation_checkpointing`; all layers where nothing has been chosen."""
        return 1.0 if self.activation_checkpointing is None else self.activation_checkpointing

    @property
    def keeps_moments_in_host(self) -> bool:
        """`offload_optimizer`; true where nothing has been chosen."""
        return self.offload_optimizer is not False


class OptimizerSettings(Section):
    learning_rate: Above0
    schedule: Literal["constant", "linear", "cosine"]
    warmup_steps: Count
    decay_steps: Positive | None
    """Steps until a schedule that decays is at 0; null for `constant`."""
    beta1: Share
    beta2: Share
    epsilon: Above0
    weight_decay: NotNegative
    max_grad_norm: Above0

    @model_validator(mode="after")
    def _decays_to_an_end(self) -> "OptimizerSettings":
        if (self.decay_steps is None) != (self.schedule == "constant"):
            raise _refusal("decay_steps", "set for a schedule that decays, and null for constant")
        return self


class CheckpointSettings(Section):
    every_steps: Positive
    every: Positive
    """Iterations from one model at `model.pt` to the next."""
    keep: Positive


class TrainingConfig(Section):
    """The part of `trainer=grpo` that a trainer process takes as it is."""

    mini_batches: Positive
    """Optimizer steps that are made of the groups of an iteration."""
    price_per_hour: NotNegative
    """Dollars that the trainer's machines cost, all together."""
    peak_tflops: Above0 | None
    """The peak of one device in bf16; None: known by the device's name."""
    freeze_vision_tower: bool
    """True: of a model that reads images only the part that reads text is trained."""
    loss: LossSettings
    lora: LoraSettings
    batch: BatchSettings
    parallel: ParallelSettings
    optimizer: OptimizerSettings
    checkpoint: CheckpointSettings


class GrpoConfig(TrainingConfig):
    """The streaming GRPO trainer."""

    kind: Literal["grpo"]
    streamed: bool
    """True if a group is trained on as soon as it is complete; else the iteration's rollout ends first."""
    placement: Placement
    """Decides whether this node's engine and the trainer use the same devices, and when."""
    max_num_gen_batches: Positive
    """The most times that an iteration's number of groups is sampled to replace those that are left out."""
    reward_threshold: float
    nproc_per_node: Positive | None
    max_restarts: Count
    timeout_s: Seconds
    keep_versions: AtLeast2
    export_dtype: Literal["bfloat16", "float32"] | None

    @property
    def takes_turns(self) -> bool:
        """Return whether trainer and engine have the same devices, and never at the same time."""
        return self.placement in ("colocated", "hybrid")

    @property
    def num_gen_batches(self) -> int:
        """1: no group is sampled in the place of another."""
        return self.max_num_gen_batches if self.loss.drop_uninformative else 1

    @model_validator(mode="after")
    def _deals_what_it_knows(self) -> "GrpoConfig":
        if self.batch.order == "shuffled" and self.num_gen_batches > 1:
            reason = (
                "1 with batch.order=shuffled and loss.drop_uninformative=true: samples are dealt before it is"
                " known which groups others are sampled for"
            )
            raise _refusal("max_num_gen_batches", reason)
        return self


def _refusal(key: str, reason: str) -> PydanticCustomError:
    return PydanticCustomError("unfit", "{key} must be {reason}", {"key": key, "reason": reason})
