"""Writes the cards of a model and of exported traces: the facts of a run as Markdown.

config.yaml, progress.jsonl, bill.json, versions.json ─► model/README.md, best/README.md
the same, counts of the export ────────────────────────► README.md of the traces
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from r3l.files.hub_data_set import is_name
from r3l.files.whole_file import write_whole
from r3l.models.model_folder import read_checksums
from r3l.models.model_path import builtin_policy
from r3l.run import bill
from r3l.run.config import RunConfig
from r3l.run.files.progress_lines import EvalLine
from r3l.run.files.run_folder import BEST, RunFolder
from r3l.settings.section import flat_settings
from r3l.text import printable

CARD = "README.md"
_IN_CACHE = re.compile(r".*/models--([^/]+)--([^/]+)/snapshots/([0-9a-f]+)/?")
_SETTING, _WORD = re.compile(r"[\w.]+"), re.compile(r"[\w+-]{1,40}")
_OF_WORDS = re.compile(
    r"log|env\.isolation|actor\.(?:dtype|earlier_reasoning)"
    r"|actor\.agent\.(?:at_timeout|tool_parser|reasoning_parser|train|shapes)"
    r"|(?:algorithm|buffer|eval|learner)\.(?!on_checkpoint|sampler\.own|tasks\.own)[\w.]+"
)
"""Settings whose words a card may publish. It may publish the numbers of all settings."""
_PACKAGE = re.compile(r"[\w-]+:[\w.-]+/[\w.-]+")  # such as verifiers:owner/name
NOT_TRIED = (
    "other seeds: this is one run, and its intervals are over tasks, not over seeds",
    "other settings: no setting was searched for this card",
    "other tasks than those of the environment, other languages, and longer attempts",
    "whether the policy is safe, fair or honest",
)
"""What a single run cannot have tried."""
UNTRAINED = ": the weights before training"


def changed_settings(config: RunConfig) -> dict[str, Any]:
    """Returns the settings that differ from their defaults, keyed by their full names."""
    values = flat_settings(config.model_dump(mode="json"))
    usual = RunConfig(algorithm=type(config.algorithm)()).model_dump(mode="json")
    defaults = flat_settings(usual)
    return {key: value for key, value in values.items() if defaults.get(key) != value}


def write_model_cards(run: RunFolder) -> list[Path]:
    """Writes a card beside each of a run's finished models. Raises OSError, UserError."""
    written = []
    for folder in (run.path / "model", run.path / BEST):
        saved = read_checksums(folder) if folder.is_dir() else None
        if saved is not None:
            write_whole(folder / CARD, model_card(run, saved.step))
            written.append(folder / CARD)
    return written


def model_card(run: RunFolder, step: int) -> str:
    """Returns the card of the weights of an optimizer step. Raises UserError."""
    config, evaluations = run.settings(), run.evaluations()
    base = base_model(config.model)
    head = [*([f"base_model: {base[0]}"] if base[0] else []), "library_name: transformers",
            "tags: [reinforcement-learning, r3l]"]  # fmt: skip
    facts = [
        ("base model", base[1]),
        ("algorithm", _file_alone(config.algorithm.name)),
        ("trained", _trained(config)),
        ("environment", _environments(config)),
        ("optimizer steps", f"{step} of {config.learner.steps}{UNTRAINED if step == 0 else ''}"),
        ("seed", config.seed),
        ("used", _used(run, config)),
    ]
    parts = [_head(head), f"# {run.path.resolve().name}, step {step}", _table(facts)]
    parts += ["## Evaluation", _evaluation(config, evaluations, step), *_settings(run, config)]
    parts += ["## Not tried", _list(NOT_TRIED)]
    return _page(parts)


def data_card(run: RunFolder | None, counts: Mapping[str, int], rewards: Sequence[float]) -> str:
    """Returns the card of exported traces. `run`: None if only its store is known. `counts`:
    numbers of sessions by their kind. `rewards`: the rewards of the sessions. Raises UserError."""
    facts: list[tuple[str, object]] = [(name, count) for name, count in counts.items() if count]
    low, high = min(rewards), max(rewards)
    spread = f"mean {fmean(rewards):.3g}, from {low:.3g} to {high:.3g}"
    facts.append(("reward of all sessions", spread))
    name, parts = "traces", list[str]()
    if run is not None:
        config, name = run.settings(), f"traces of {run.path.resolve().name}"
        facts += [("policy", base_model(config.model)[1]),
                  ("algorithm", _file_alone(config.algorithm.name)),
                  ("environment", _environments(config))]  # fmt: skip
        parts = _settings(run, config)
    about = (
        "Each file in `sessions/` is an attempt: a header, then its messages. The header has the "
        "`reward`, the `task`, and of a retry the slot that it retries (`of`), the step from which "
        "it was played (`pivot`) and the `advice` that it was given."
    )
    unseen = (
        "the header's `task` holds what the environment was given, also reference answers",
        "whether the texts hold personal data or secrets: read them before you publish them",
        "whether the tasks may be published: their own licence decides",
        "tokens and log-probabilities, which these files leave out: r3l-buffer export has them",
    )
    body = [_head(["tags: [agent-traces, r3l]"]), f"# {name[0].upper()}{name[1:]}", about,
            _table(facts), *parts, "## Not checked", _list(unseen)]  # fmt: skip
    return _page(body)


def base_model(model: str) -> tuple[str, str]:
    """Returns a model's name on the hub ("" if it has none), and the words that name it in a card.
    `model`: the setting."""
    if model == "builtin" or Path(model) == builtin_policy():
        return "", "builtin, the tiny policy that r3l ships"
    if found := _IN_CACHE.fullmatch(model):
        name = f"{found[1]}/{found[2]}"
        return name, f"{name} at {found[3]}"
    return "", f"the folder {Path(model).name}" if "/" in model else model


def _evaluation(config: RunConfig, lines: Sequence[EvalLine], step: int) -> str:
    if not lines:
        return "Not measured: the run has no evaluation."
    own = [line for line in lines if line.step == step]
    shown = [lines[0], *(line for line in own if line is not lines[0])]
    names = [name for name in ("success", "reward") if any(name in e.metrics for e in shown)]
    rows = [["step", *names, "tasks", "failed"]]
    rows += [[f"{e.step}", *(_interval(e, name) for name in names), f"{e.tasks}", f"{e.failed}"]
             for e in shown]  # fmt: skip
    given = flat_settings({"env": {"options": config.env.options}})
    shown_options = (key for key, value in given.items() if may_be_published(key, value))
    options = ", ".join(f"{key.removeprefix('env.options.')}={given[key]}" for key in shown_options)
    panel = (
        f"Panel: the first {shown[-1].tasks} tasks of the split `eval` of {_environments(config)}"
        + (f" ({options})" if options else "")
        + f", temperature {config.eval.main_temperature:g}; `r3l-eval` prints its digest. In "
        "brackets: 95 % intervals over tasks."
    )
    missing = [] if own else [f"These weights, of step {step}, were not evaluated."]
    return "\n\n".join([_grid(rows), panel, *missing])


def _interval(line: EvalLine, name: str) -> str:
    metrics = line.metrics
    if name not in metrics:
        return "–"
    ends = [metrics.get(f"{name}_{end}") for end in ("low", "high")]
    known = [f"{end:.3g}" for end in ends if end is not None]
    return f"{metrics[name]:.3g}" + (f" [{', '.join(known)}]" if len(known) == 2 else "")


def _trained(config: RunConfig) -> str:
    rank = config.learner.lora.rank
    of = f"adapters of rank {rank}, merged" if rank else "all weights"
    return f"{of}; {config.learner.groups_per_step} groups a step, rate {config.learner.lr:g}"


def _used(run: RunFolder, config: RunConfig) -> str:
    processes = run.bill()
    return bill.line(bill.total(processes.values()), config.cost) if processes else "not recorded"


def _settings(run: RunFolder, config: RunConfig) -> list[str]:
    """Returns the section of settings: those that differ from their defaults, and versions."""
    changed = changed_settings(config)
    open_ = {key: value for key, value in changed.items() if may_be_published(key, value)}
    rows = [["setting", "value"], *([f"`{key}`", f"`{value}`"] for key, value in open_.items())]
    body = [_grid(rows)] if open_ else [] if changed else ["All settings have their defaults."]
    # The name of an environment is part of the names of its settings, and may be a path.
    closed = {key if _SETTING.fullmatch(key) else "env.others" for key in changed.keys() - open_}
    if closed:
        body.append(
            "Other values than the defaults, which are left out because they may name folders, "
            f"hosts or secrets: {', '.join(sorted(closed))}."
        )
    versions = ", ".join(f"{name} {value}" for name, value in run.versions().items())
    return ["## Settings", *body, f"Versions: {versions or 'not recorded'}."]


def may_be_published(key: str, value: Any) -> bool:
    """Whether a card may show a setting. It may show numbers and names of data sets on the hub. It
    may show a word only if the setting never holds anything but words."""
    if not _SETTING.fullmatch(key):
        return False
    values = value if isinstance(value, list | tuple) else [value]
    words = _OF_WORDS.fullmatch(key) is not None
    return all(
        each is None
        or isinstance(each, bool | int | float)
        or (isinstance(each, str) and (is_name(each) or (words and _WORD.fullmatch(each))))
        for each in values
    )


def _environments(config: RunConfig) -> str:
    return " + ".join(map(_file_alone, config.env.names))


def _file_alone(name: str) -> str:
    """Returns the name of an algorithm or environment, without the folders of a file."""
    return name if _PACKAGE.fullmatch(name) else Path(name).name


def _head(lines: Sequence[str]) -> str:
    return "\n".join(["---", *lines, "---"])


def _table(facts: Sequence[tuple[str, object]]) -> str:
    return _grid([["", ""], *([name, str(value)] for name, value in facts)])


def _grid(rows: Sequence[Sequence[str]]) -> str:
    head, *others = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *others])


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|").replace("\n", " ")


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _page(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n"
