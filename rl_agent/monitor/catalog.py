"""Describes every number of `metrics.jsonl`: its name, its unit, its meaning.

docs/reference/metrics.md is made from it. A part of a name in `<…>` stands for any text between slashes. A
test checks that every number that is logged is listed here, and every number listed here is logged.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

_SPLIT = "(?:train|test)"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of the metrics file."""

    name: str
    unit: str
    """Empty for a number without one."""
    meaning: str

    def fits(self, name: str) -> bool:
        """Return whether a logged name is one of this metric."""
        return _pattern(self.name).fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Chapter:
    """Metrics that stand in lines of one kind."""

    title: str
    words: str
    metrics: tuple[Metric, ...]


@cache
def _pattern(name: str) -> re.Pattern[str]:
    parts = [_SPLIT if part == "<split>" else _part(part) for part in name.split("/")]
    return re.compile("/".join(parts))


def _part(part: str) -> str:
    return re.sub("<[^>]*>", "[^/]+", re.escape(part))


def _table(prefix: str, rows: str) -> tuple[Metric, ...]:
    """Read rows `name | unit | meaning`; a line without bars continues the meaning above it."""
    cells: list[list[str]] = []
    for line in rows.strip().splitlines():
        row = [cell.strip() for cell in line.split(" | ")]
        if len(row) == 1:
            cells[-1][2] += f" {row[0]}"
        else:
            cells.append(row)
    return tuple(Metric(f"{prefix}{name}", unit, meaning) for name, unit, meaning in cells)


LINE = Chapter(
    "Every line",
    "Where a line belongs.",
    _table(
        "",
        """
        time | s | when it was written, since the epoch
        iteration |  | trip round the loop, from 1
        phase |  | `update`; lines of a rollout have `split` instead
        engines_wanted_because |  | of a step over a pool with `pool.scale.kinds`: `3 wanted: …`
        split |  | `train` or `test`
        update_step |  | optimizer step, counted over all iterations; in lines of single steps
        """,
    ),
)

ROLLOUT = Chapter(
    "A rollout or an evaluation",
    "One line each time; `<split>` is `train` for a rollout and `test` for an evaluation.",
    _table(
        "<split>/",
        """
        submitted |  | episodes that the iteration asked for
        episodes |  | episodes that were recorded
        completed_share | share | of the episodes: ended with a reward
        failed_share | share | of the episodes: ended by an error, of the engine, the environment or the
            judge
        timed_out_share | share | of the episodes: ran into their time limit
        abandoned_share | share | of the episodes: given up by the stop rule
        success_rate | share | of the completed episodes: reward at or above the threshold
        reward_mean |  | mean reward of the completed episodes
        reward/<name> |  | mean of a named reward over the completed episodes that have it, not weighted
        reward_std |  | standard deviation of the rewards of the completed episodes
        zero_std_groups_share | share | of the groups with two siblings that have a reward: all their rewards
            are equal, so that relative advantages are 0 (TRL's `frac_reward_zero_std`)
        truncated_share | share | of the completed episodes: cut by the step limit, a full context or, in
            the last response, the token limit
        steps_mean |  | turns an episode took
        prompt_tokens | tokens | of new prompt text; a context that was sent again in full counts in full
        response_tokens | tokens | sampled
        invalid_share | share | of the steps: an action that could not be read or carried out
        response_tokens_mean | tokens | a response's length
        cut_responses_share | share | of the responses: ended at the token limit
        weight_version |  | newest weight version that a response is of
        same_response_share | share | of the completed episodes: the responses are one and the same, case,
            spaces and punctuation aside, less the share of the commonest expected answer
        examples |  | a rewarded and a failed episode of an evaluation: reward, response, expected
            answer, prompt
        <difficulty>/<number> |  | each of the numbers above, for the tasks of one difficulty
        <difficulty>/reward/<name> |  | the same of one difficulty
        failures/<kind> |  | episodes that ended by this kind of error
        commonest_failures |  | their commonest messages with how often each occurred
        outcomes |  | number of test tasks by test set and by `ATTEMPTS/SUCCESSES`
        pass@<k> | share | chance that one of k attempts solves a test task (`test_tasks_repeat_times`); an
            attempt without a reward does not
        avg@<k> | share | of the k attempts at a test task: solved
        set/<test set>/pass@<k> | share | the same for the tasks whose field `test_set` has this value
        set/<test set>/avg@<k> | share | the same for the tasks whose field `test_set` has this value
        lost_attempts/<kind> |  | attempts that an environment spoiled so; they were begun again
        queue_s_p50 | s | a response waited for its turn at the engine: median
        queue_s_p95 | s | the same: 95th percentile
        request_s_p50 | s | the engine took for a response: median
        request_s_p95 | s | the same: 95th percentile
        environment_s_p50 | s | the environment took for a turn: median
        environment_s_p95 | s | the same: 95th percentile
        judge_verdicts |  | verdicts of a judging model
        judge_cached |  | verdicts that were known already
        judge_prompt_tokens | tokens | sent to the judge
        judge_completion_tokens | tokens | generated by the judge
        judge_cost_usd | $ | the judge's price, by `openai_config`
        uninformative_groups |  | groups without an advantage, where `trainer.max_num_gen_batches` lets
            others be sampled
        resampled_groups |  | groups that were sampled in their place
        engine_tokens_per_s | tokens/s | sampled for rank 0 in `rollout_s`, for rollouts that begin early too
        engine_idle_share | share | of `rollout_s`: no request of rank 0 was at the engine
        rollout_s | s | from the first episode to the last; of a rollout that began early, from its order
        """,
    ),
)

STEP = Chapter(
    "An optimizer step",
    "One line each, of either trainer.",
    _table(
        "update_step/",
        """
        loss |  | what was minimised, over the whole mini-batch
        grad_norm |  | length of the gradient before it is clipped
        learning_rate |  | of this step
        eval_loss |  | on the validation samples, where `trainer=llamafactory` has some
        """,
    ),
)

STREAMED_STEP = Chapter(
    "An optimizer step of `trainer=grpo`",
    "In the same lines, and in the log as one line per step. Means are over all response tokens of the "
    "mini-batch unless they say otherwise, whatever micro-batches and ranks it was cut into.",
    _table(
        "trainer/",
        """
        reward |  | mean over episodes
        length_penalty |  | taken off the reward for length (`trainer.loss.overlong`), mean over episodes
        cut_share | share | of the episodes of the step, masked ones included, with a response that was
            cut off
        advantage_magnitude |  | mean of the advantage's absolute value over episodes
        entropy | nats | of the policy's next token
        kl | nats | estimate of the divergence from the reference model, where there is a KL term, under
            the policy: weighted where another one sampled
        clip_fraction | share | of the tokens whose ratio was clipped
        ratio |  | policy over proximal policy
        ratio_max |  | the largest of them
        importance_weight |  | weight of a token between engine and trainer
        masked_share | share | of the tokens that have the weight 0 (`trainer.loss.correction`,
            `trainer.loss.sequence_mask`)
        behaviour_kl | nats | of the policy from what the engine reported it sampled with; at temperature 1
            alone, for engines report logprobs as they are before the temperature
        logprob_difference | nats | absolute difference between the engine's logprob and the trainer's, at
            temperature 1
        is_skipped |  | 1 where the gradient was not finite and no update was made
        episodes |  | trained on
        response_tokens | tokens | trained on
        response_length | tokens | mean over episodes
        response_length_max | tokens | the longest
        total_tokens | tokens | trained on, prompts included
        computed_tokens | tokens | that the model computed for them; fewer where sequences of a micro-batch
            begin alike, as siblings do with their prompt
        micro_batches |  | of one rank
        staleness/<versions> |  | episodes whose oldest token was sampled so many weight versions before
            the one that the iteration began with
        updates_since_sampling |  | most updates between the weights that sampled a token and those that
            the step starts from; above 0 from the second step of an iteration on
        rejected_groups/<reason> |  | groups that were not trained on, since the step before
        seconds/step | s | the whole step
        seconds/waiting | s | of it: no group was there to train on
        seconds/gradient | s | of it: forward and backward passes
        seconds/update | s | of it: clipping and the optimizer
        waiting_share | share | of the step: no group was there to train on
        tokens_per_s | tokens/s | trained on over the seconds of the step, by all devices
        tokens_per_s_per_device | tokens/s | the same for one of the trainer's devices
        flops | FLOP | that the model demands for the step, prefixes that are shared once;
            `rl_agent/monitor/flops.py` counts them
        tflops_per_s_per_device | TFLOP/s | of those, over the seconds that were not waited
        mfu | share | of the device's bf16 peak that this is; absent where the peak is not known, as on a
            CPU
        engines |  | ready in the pool at the end of the step
        engines_wanted |  | that the pool wants (`pool.scale`); the reason is in the line's
            `engines_wanted_because`
        engines_up_s | s | engine-seconds since the step before, of all engines
        engines_idle_s | s | of those: ready, and without a request
        engines_draining_s | s | of those: draining, to complete responses of older weights
            (`trainer.batch.allow_mixed_versions: false`)
        engines_idle_share | share | the ratio of the two
        recomputed_tokens | tokens | discarded since the step before, because their response was restarted
        prefilled_again_tokens | tokens | prefilled a second time, because a request migrated
        cost | $ | since the step before: `trainer.price_per_hour` and the engines' `--price`
        cost_per_million_tokens | $ | that, over the tokens trained on
        """,
    ),
)

UPDATE = Chapter(
    "The update of an iteration",
    "One line per iteration. Sums and means of its steps since the trainer was started last.",
    _table(
        "update/",
        """
        steps |  | optimizer steps made in it
        total_steps |  | optimizer steps made in all
        samples |  | trained on: steps with `trainer=llamafactory`, episodes with `trainer=grpo`
        loss |  | mean over the optimizer steps
        learning_rate |  | of the last step
        train_s | s | that the training took
        weight_version |  | that came of it
        """,
    ),
)

LLAMAFACTORY_UPDATE = Chapter(
    "The same, of `trainer=llamafactory`",
    "In the same lines.",
    _table(
        "update/",
        """
        validation_samples |  | held back
        candidates |  | steps that could have been chosen
        tasks |  | that the samples are of
        left_out |  | positive steps that could not be trained on as they were seen
        loss_first |  | of the first step that was logged
        loss_last |  | of the last one
        eval_loss |  | on the validation samples, the last time
        """,
    ),
)

GRPO_UPDATE = Chapter(
    "The same, of `trainer=grpo`",
    "In the same lines; see the metrics of a step, of which these are sums.",
    _table(
        "update/",
        """
        tokens | tokens | trained on, prompts included
        grad_norm |  | mean over the steps
        waiting_s | s | without a group to train on
        waiting_share | share | of the steps: no group was there to train on
        flops | FLOP | that the model demands
        mfu | share | of the peak, over the seconds that were not waited
        engines_idle_s | s | engine-seconds: ready, and without a request
        engines_draining_s | s | engine-seconds of draining, to complete responses of older weights
        recomputed_tokens | tokens | discarded, because their response was restarted
        prefilled_again_tokens | tokens | prefilled a second time, because a request migrated
        cost | $ | of trainer and engines
        cost_per_million_tokens | $ | over the tokens trained on
        window_s | s | in which an engine on the trainer's devices generated (`trainer.placement`)
        after_window_waiting_s | s | without a group to train on, after that engine's turn
        publish_s | s | to put the version where engines fetch it
        model_s | s | to put it at `model.pt`, where it was due
        sent_tcp_bytes | bytes | of weights that the trainer sent over TCP since the version before
        sent_in_host_bytes | bytes | the same, to engines of its own host
        sent_paired_bytes | bytes | the same, by NCCL
        """,
    ),
)

WEIGHTS = Chapter(
    "New weights for a running engine",
    "One line per update with `weights=inplace`.",
    _table(
        "weights/",
        """
        snapshot_s | s | to make the version, while the engine goes on
        pause_s | s | in which the engine generated nothing
        load_s | s | of it: to load
        bytes | bytes | of the version
        """,
    ),
)

CHAPTERS = (LINE, ROLLOUT, STEP, STREAMED_STEP, UPDATE, LLAMAFACTORY_UPDATE, GRPO_UPDATE, WEIGHTS)


def all_metrics() -> Iterator[Metric]:
    """Iterate over the metrics of all chapters."""
    for chapter in CHAPTERS:
        yield from chapter.metrics


def find(name: str) -> Metric | None:
    """Find the metric of a logged name, preferring one without placeholders."""
    fitting = [metric for metric in all_metrics() if metric.fits(name)]
    return min(fitting, key=lambda metric: metric.name.count("<"), default=None)
