"""Lists the tag, unit and meaning of every metric. `python -m learner.metrics.tags` prints
docs/metrics.md. Most metrics are measured in learner.metrics.group_metrics; actors' metrics come
from r3l.run.actor_metrics."""

import re
import warnings
from functools import cache
from typing import NamedTuple

from learner.evaluation.metrics import ANSWER_PROBABILITY
from learner.evaluation.metrics import METRICS as EVAL_METRICS
from r3l.records import GROUP_STATES
from r3l.run.actor_metrics import described_fields


class Metric(NamedTuple):
    """Describes a metric: its tag, unit and meaning."""

    tag: str
    unit: str
    meaning: str


LENGTHS = (
    ("cut_attempts", "share", "attempts whose last response was cut off by the context"),
    ("cut_responses", "share", "responses cut off by their budget of tokens"),
    ("length_mean", "tokens", "of an attempt, prompts included, mean"),
    ("length_p95", "tokens", "the same, 95th percentile"),
    ("length_max", "tokens", "the same, of the longest attempt"),
    ("response_mean", "tokens", "of a response, mean"),
    ("response_p95", "tokens", "the same, 95th percentile"),
    ("response_max", "tokens", "the same, of the longest response"),
)

GROUP = (
    ("attempts", "attempts", "of the groups, retries included"),
    ("retries", "attempts", "that retry another one of their group"),
    ("successes", "attempts", "with full reward, retries included"),
    ("reward_mean", "reward", "mean over base and distilled trajectories"),
    ("best_reward", "reward", "highest of a group, mean over groups"),
    ("reward_std", "reward", "standard deviation within a group, mean over groups"),
    ("success_base", "share", "base trajectories with full reward, played from their beginning"),
    ("success_started", "share", "the same, started inside a stored attempt of another group"),
    ("started", "attempts", "that started inside a stored attempt of another group"),
    ("start_relative", "share", "of the steps of such an attempt that precede its start, mean"),
    ("success_context", "share", "the same, with a context, such as a stored failure (R³)"),
    ("success_base_<env>", "share", "base attempts with full reward, if there are several envs"),
    ("success_retry", "share", "distilled trajectories with full reward"),
    ("trigger_rate", "share", "reflections that called for a retry, even if the retry failed"),
    ("reflection_valid", "share", "reflections that could be read"),
    ("reflection_<cause>", "share", "reflections that could not be read, by cause"),
    ("improvement_rate", "share", "retries with more reward than their base trajectory"),
    ("verified_rate", "share", "retries that count as verified corrections"),
    ("guidance_gain", "reward", "that guided retries earn beyond further attempts"),
    ("guidance_gain_se", "reward", "standard error of guidance_gain"),
    ("guidance_slots", "attempts", "retried, on which guidance_gain is measured"),
    ("without_retries", "share", "groups without a slot for a retry, if the algorithm retries"),
    ("reflecting", "groups", "that begin with a stored failure in their context (R³)"),
    ("ranked", "attempts", "truncated, which got rewards for the ranks of their entropies (R³)"),
    ("advised", "share", "failures whose reflection holds advice, if attempts are read again"),
    ("pivot_relative", "share", "of a retry's steps that precede its pivot, mean over retries"),
    ("pivot", "histogram", "pivots of the retries, in steps"),
    ("rewards", "histogram", "rewards of the attempts"),
    ("lengths", "histogram", "lengths of the attempts, prompts included, in tokens"),
    ("no_contrast", "share", "groups whose rewards are all equal"),
    ("dropped", "share", "trajectories that the algorithm does not train on"),
    ("steps_mean", "steps", "length of a base trajectory"),
    ("generated_tokens", "tokens", "sampled for the groups, reflections included"),
    ("aux_samples", "samples", "auxiliary samples that the step trains on"),
    ("aux_left_out", "samples", "that a limit leaves out: auxiliary ones, attempts to read again"),
    *LENGTHS,
    (
        "length_correlation",
        "1",
        "rank correlation of reward and characters of a response, in a group",
    ),
    ("one_reply", "share", "of the last 50 problems in which one short reply earns; the best one"),
    ("part_<name>", "reward", "part of a base attempt's reward that the environment names, mean"),
    ("failed_<cause>", "slots", "failed, by cause"),
    ("fault_<name>", "faults", "of environments that did not end the attempt, by name"),
)

STALENESS = (
    ("mean", "versions", "age of a group's oldest step, mean over groups"),
    ("max", "versions", "the same, of the oldest group"),
    ("versions", "histogram", "age of the groups, in versions"),
)

TIME = (
    ("generation_s", "s", "to sample a base trajectory"),
    ("reflection_s", "s", "to sample a reflection"),
    ("retry_s", "s", "to sample a retry from its pivot on"),
    ("spread_s", "s", "from a group's first resolved slot to its last"),
    ("queue_s", "s", "from a group's completion to its draw"),
)

REPLAY = (
    ("groups", "groups", "of the step that were trained before, or imported"),
    ("imported", "groups", "those of them that no actor of the run played"),
    ("staleness", "versions", "age of the oldest step of a group trained before, mean"),
)

RECALL = (
    ("attempts", "attempts", "recalled by all groups of the step"),
    ("lost", "attempts", "recalled, but evicted before they could be read"),
    ("success", "share", "recalled attempts with full reward"),
    ("staleness", "versions", "age of a recalled attempt's oldest step, mean"),
)

BUFFER = (
    *((state, "groups", f"now {state}") for state in GROUP_STATES),
    ("expired_<cause>", "groups", "expired, by cause"),
    ("stale_share", "share", "trained and expired groups that expired as too old"),
    ("slots_<role>_<cause>", "slots", "failed, or expired with their group, by role and cause"),
    ("partial_dropped_<cause>", "attempts", "left by an actor, and not continued, by cause"),
    ("algorithm_failed_<method>", "calls", "that failed, of the algorithm's plan, admits, recalls"),
    ("bytes", "bytes", "of the store's files now"),
    ("archived", "groups", "whose record is in the archive (buffer.archive)"),
    ("archive_failed_<kind>", "files", "of the archive that could not be written, by kind"),
    ("puts", "results", "accepted"),
    ("draws", "draws", "handed out"),
    ("leases_expired", "leases", "not renewed in time"),
    ("draws_expired", "draws", "not committed in time"),
    (
        "refused",
        "1",
        "since the service started: requests answered with an error, dropped or damaged; "
        "connections refused or shut down; failed transactions; metrics of actors that are not "
        "finite",
    ),
)

ACTOR = (
    ("tokens_per_s", "tokens/s", "sampled in the last step, or in the last steps that took 5 s"),
    ("prefix_hit", "share", "prompt tokens in the prefix cache"),
)

AGENT = (
    ("calls_per_s", "calls/s", "answered in the last step, or in the last steps that took 5 s"),
    (
        "trained_share",
        "share",
        "of the sampled tokens that is trained, of attempts recorded in the last five steps, or in "
        "the last steps that took 5 s",
    ),
    (
        "shapes_missed_share",
        "share",
        "of calls that ask for a shape, whose reply a grammar shaped, in the same steps",
    ),
)

LEARNER = (
    ("loss", "loss", "the whole loss"),
    ("loss_penalized", "loss", "policy loss and weighted KL to the reference model"),
    ("loss_sft", "loss", "supervised loss on auxiliary samples, before its coefficient"),
    ("loss_policy", "loss", "policy loss without the KL to the reference model"),
    ("loss_reflection", "loss", "policy gradient of reflections (HiLL), before its coefficient"),
    ("loss_distilled", "loss", "cross-entropy with the advised policy (forward_kl), likewise"),
    (
        "reliance",
        "nats/token",
        "of retries, not replayed: log π without guidance less that of sampling",
    ),
    ("aux_share", "share", "λ · auxiliary rows, of all rows' weights; advantages do not count"),
    ("largest_token_weight", "1", "of a trajectory's token in the loss; the mean token has 1"),
    ("kl_reference", "nats/token", "KL to the reference model, before its coefficient"),
    ("clip_fraction", "share", "tokens whose ratio was clipped"),
    ("ratio_correction_dropped", "share", "tokens that the ratio correction gives weight 0"),
    ("ratio_correction_weight", "1", "weight of a token under the ratio correction, mean"),
    ("behaviour_kl", "nats/token", "KL between sampling policy and policy (k3 estimate)"),
    ("behaviour_ess", "share", "effective sample size of the importance ratios, per token"),
    ("engine_gap", "nats/token", "between engine's and learner's log-probabilities, equal weights"),
    ("engine_kl", "nats/token", "KL between engine and learner at equal weights (k3 estimate)"),
    ("engine_tokens", "tokens", "of the step that were sampled with the learner's own weights"),
    ("entropy", "nats/token", "of the policy, at the temperature of each trajectory"),
    ("behaviour_kl_<role>", "nats/token", "behaviour_kl of base, distilled or reused tokens"),
    ("behaviour_ess_<role>", "share", "behaviour_ess of base, distilled or reused tokens"),
    ("entropy_<role>", "nats/token", "entropy of base, distilled or reused tokens"),
    ("grad_norm", "norm", "of the gradient before clipping"),
    ("grad_norm_<part>", "norm", "of one part of the loss alone (learner.part_norms)"),
    ("grad_clipped", "share", "of the gradient that clipping removes"),
    ("lr", "1", "learning rate"),
    ("tokens_per_micro_batch", "tokens", "budget of a micro-batch, halved when memory runs out"),
    ("threads", "1", "CPU threads of a rank, on which the last bits of a step depend"),
    ("padding", "share", "computed positions that hold no token"),
    ("shared_tokens", "share", "tokens computed once for several rows"),
    ("tokens_per_s", "tokens/s", "trained, without padding, during the step"),
    ("trained_tokens", "tokens", "of the step's rows, without padding"),
    ("held_tokens", "tokens", "of them, with a prefix that rows share counted once, as computed"),
    ("cpu_s", "s", "CPU time of all ranks, since they started"),
    ("step_s", "s", "forward, backward and update"),
    ("forward_s", "s", "of the step's forward passes and losses (on CPUs)"),
    ("backward_s", "s", "of the step's backward passes (on CPUs)"),
    ("update_s", "s", "of the optimizer (on CPUs)"),
    ("pack_s", "s", "rows made of groups"),
    ("queries_s", "s", "the model asked before that, such as a reference; if the algorithm asks"),
    ("wait_s", "s", "waited for a batch"),
    ("idle_share", "share", "of the time of a step with its queries and wait, spent waiting"),
    ("skipped_steps", "steps", "discarded because loss or gradient was not finite, so far"),
    ("unfit_batches", "batches", "for which rank 0 has no memory, since the learner started"),
    ("out_of_memory", "times", "the budget was halved, since the learner started"),
    ("hangs", "times", "a learner of this run hung and was ended"),
    ("on_checkpoint_failed", "commands", "of learner.on_checkpoint, since the learner started"),
)

WEIGHTS = (
    ("full_bytes", "bytes", "one whole set"),
    ("patch_bytes", "bytes", "the patches of the last version that was published before this one"),
    ("patch_density", "share", "elements that version changed"),
    ("publish_s", "s", "comparing and compressing that version, beside a step"),
    ("journal_bytes", "bytes", "that version in the journal"),
    ("copy_s", "s", "gathering and copying this step's version, inside the step"),
    ("wait_s", "s", "waited until the version before was published"),
    ("not_in_ray", "versions", "that Ray's store did not take, since the learner started"),
    ("refused", "requests", "refused by the publisher, since the learner started"),
    ("version_lag", "versions", "of the actor furthest behind"),
    ("mismatch", "times", "two engines held different weights of one version, in this step"),
)

BILL = (
    ("sampled_tokens", "tokens", "sampled, also to evaluate"),
    ("read_tokens", "tokens", "given to engines as prompts, also those in a prefix cache"),
    ("trained_tokens", "tokens", "all `learner/held_tokens`; passes for queries are not counted"),
    ("cpu_s", "s", "CPU time of buffer, learner and actors, with all that they started"),
    ("gpu_s", "s", "GPUs of learner and actors, each as long as its process ran"),
    ("hours", "h", "in which the learner ran or waited"),
    ("amount", "1", "all of it at the prices of `cost`, if there are any"),
)

ENDS = (("", ""), ("_low", "lower end of its 95 % interval"), ("_high", "upper end of the same"))
EVAL = (
    *(
        (metric.name + end, metric.unit, meaning or metric.meaning)
        for metric in (*EVAL_METRICS, ANSWER_PROBABILITY)
        for end, meaning in ENDS
    ),
    ("success_of_<family>", "share", "of successes in one of several environments or task kinds"),
    ("tasks", "tasks", "evaluated"),
    ("failed", "tasks", "without a trajectory"),
    ("failed_<cause>", "tasks", "without a trajectory, by cause"),
    ("fault_<name>", "faults", "of environments that did not end the attempt, by name"),
    *LENGTHS,
    ("temperature_<t>/<metric>", "as above", "any of these at a further temperature"),
)

SECTIONS = {
    "group": (
        "The groups of a step: rewards, reflections, retries. Groups that were replaced in its "
        "batch (`no_contrast`) count too, as they do in `staleness/` and `time/`.",
        GROUP,
    ),
    "staleness": (
        "Ages of a step's groups at its draw.",
        STALENESS,
    ),
    "time": (
        "How long the phases of a step's groups took. Groups that were replaced count too.",
        TIME,
    ),
    "replay": ("Groups trained again, or imported; the families above omit them.", REPLAY),
    "recall": ("Stored attempts that join groups; the families above omit them.", RECALL),
    "buffer": ("The buffer service, since its store was made unless said otherwise.", BUFFER),
    "actor": ("All actors together; counts since their processes started.", ACTOR),
    "agent": ("Agents that call the policy over HTTP, if there are any; counts as above.", AGENT),
    "learner": ("The optimizer step, and the learner's waits and failures.", LEARNER),
    "weights": ("Weights on their way from the learner to the actors.", WEIGHTS),
    "bill": (
        "What the run has used so far, restarts and earlier launches included.",
        BILL,
    ),
    "eval": ("Evaluations on held-out tasks, one attempt each, at the evaluated version.", EVAL),
}

METRICS = (
    *(
        Metric(f"{prefix}/{end}", unit, meaning)
        for prefix, (_, rows) in SECTIONS.items()
        for end, unit, meaning in rows
    ),
    *(Metric(shown.tag, shown.unit, shown.meaning) for _, shown in described_fields()),
)

_KNOWN = re.compile("|".join(re.sub(r"<\w+>", ".+", re.escape(metric.tag)) for metric in METRICS))


INTRODUCTION = """\
`make docs` writes this page from `learner/metrics/tags.py` and `r3l/run/actor_metrics.py`. The
unit and the meaning of a metric read as one phrase; a tag with `<…>` is a family of tags.
[Operations](operations.md#metrics) says where to watch the metrics."""


@cache
def check_tag(tag: str) -> None:
    """Warns once if a tag is not in the table. In tests the warning is an error."""
    if not _KNOWN.fullmatch(tag):
        warnings.warn(f"unknown metric {tag}: add it to learner/metrics/tags.py", stacklevel=2)


def markdown() -> str:
    """Returns the page docs/metrics.md."""
    parts = ["# Metrics", "", INTRODUCTION]
    for prefix, (subject, _) in SECTIONS.items():
        parts += [
            "",
            f"## `{prefix}/`",
            "",
            subject,
            "",
            "| tag | unit | meaning |",
            "|---|---|---|",
        ]
        rows = [metric for metric in METRICS if metric.tag.startswith(f"{prefix}/")]
        parts += [f"| `{row.tag}` | {row.unit} | {row.meaning} |" for row in rows]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
