"""Writes a run as one page: what was trained, on what, with what result, and what is unknown."""

import time
from collections.abc import Callable, Mapping, Sequence

from launch.inspection.pages import side_by_side
from launch.inspection.pages.curve_svg import (
    Chart,
    Line,
    Point,
    draw,
    line_of_steps,
    measured,
    number,
    window,
)
from launch.inspection.pages.markup import (
    Html,
    element,
    facts,
    folded,
    grid,
    joined,
    listed,
    page,
    paragraph,
    section,
)
from launch.inspection.pages.run_data import RunData, points_of, tags, tasks_before_and_after, total
from learner.evaluation.metrics import INTERVAL, Comparison, compare
from r3l.run.bill import amount
from r3l.run.cards import changed_settings
from r3l.run.files.progress_lines import EvalLine
from r3l.settings.error_text import shown
from r3l.text import GIB, time_span

SHARES: Mapping[str, Mapping[str, str]] = {
    "Success in training": {
        "first attempts": "group/success_base",
        "retries": "group/success_retry",
    },
    "Reflections": {
        "attempts retried": "group/trigger_rate",
        "retries that earned more": "group/improvement_rate",
        "reflections that could be read": "group/reflection_valid",
    },
    "Cut off": {
        "responses": "group/cut_responses",
        "attempts": "group/cut_attempts",
    },
    "Groups without contrast": {"groups": "group/no_contrast"},
    "Time spent waiting": {"learner": "learner/idle_share", "actors": "actor/idle_share"},
}
VALUES: Mapping[str, Mapping[str, str]] = {
    "Reward in training": {"mean": "group/reward_mean"},
    "Length of a response, tokens": {"mean": "group/response_mean"},
    "Loss": {"loss": "learner/loss"},
    "Entropy, nats a token": {"entropy": "learner/entropy"},
    "Gradient norm": {"norm": "learner/grad_norm"},
    "KL from sampling policy, nats a token": {"KL": "learner/behaviour_kl"},
    "KL to the reference, nats a token": {"KL": "learner/kl_reference"},
    "Sampled tokens a second": {"tokens": "actor/tokens_per_s"},
}
"""Tags of learner.metrics.tags, by chart and line."""


def run_page(data: RunData, *, alive: bool, wrong: Sequence[tuple[str, str]]) -> bytes:
    """Returns the page. `alive`: whether the run is running. `wrong`: what `doctor` finds, and the
    remedies."""
    name = data.folder.path.resolve().name
    written = time.strftime("%Y-%m-%d %H:%M")
    parts: list[tuple[str, Callable[[], Html]]] = [
        ("What was trained", lambda: _trained(data, alive)),
        ("On what", lambda: _on_what(data)),
        ("Results on held-out tasks", lambda: _evaluations(data)),
        ("Curves", lambda: _curves(data)),
        ("Before and after", lambda: _before_after(data)),
        ("Retries", lambda: _retries(data)),
        ("Costs", lambda: _costs(data)),
        ("What doctor finds", lambda: _findings(wrong)),
        ("Settings", lambda: _settings(data)),
    ]
    shown_parts = [
        section(title, data.read(title, part, paragraph("not measured", faint=True)))
        for title, part in parts
    ]
    body = [element("h1", f"Run {name}"), paragraph(summary(data, alive)), *shown_parts]
    body.append(section("What was not measured", listed(not_measured(data, alive))))
    body.append(paragraph(f"Written by r3l-launch report on {written}.", faint=True))
    return page(f"Run {name}", *body)


def summary(data: RunData, alive: bool) -> str:
    """Sums a run up in a sentence or two."""
    steps, evaluations = data.history.reached, data.history.evaluations
    planned = f" of {data.config.learner.steps}" if data.config else ""
    words = [f"{steps}{planned} steps{_state(data, alive)}."]
    if len(evaluations) > 1:
        first, last = evaluations[0], evaluations[-1]
        words.append(
            f"Success on {last.tasks} held-out tasks: {_interval(first, 'success')} at step "
            f"{first.step}, {_interval(last, 'success')} at step {last.step}."
        )
    elif evaluations:
        only = evaluations[0]
        words.append(f"Success on {only.tasks} held-out tasks at step {only.step}: "
                     f"{_interval(only, 'success')}.")  # fmt: skip
    else:
        words.append("Success on held-out tasks: not measured.")
    return " ".join(words)


def _state(data: RunData, alive: bool) -> str:
    if alive:
        return "; the run is still running"
    ended = data.config is None or data.history.reached >= data.config.learner.steps
    return "" if ended else "; the run is unfinished"


def _trained(data: RunData, alive: bool) -> Html:
    config, steps = data.config, data.history.steps
    rows: list[tuple[str, object]] = []
    if config is not None:
        rank = config.learner.lora.rank
        of = f"adapters of rank {rank}" if rank else "all weights"
        rows += [
            ("model", config.model),
            ("algorithm", config.algorithm.name),
            ("trained", f"{of}, learning rate {config.learner.lr:g}"),
            ("a step", f"{config.learner.groups_per_step} groups"),
            ("seed", config.seed),
        ]
    planned = f" of {config.learner.steps}" if config else ""
    rows.append(("steps", f"{data.history.reached}{planned}{_state(data, alive)}"))
    if steps:
        first, last = (time.strftime("%Y-%m-%d %H:%M", time.localtime(line.time))
                       for line in (steps[0], steps[-1]))  # fmt: skip
        rows.append(("first step, last step", f"{first}, {last}"))
    if data.best is not None:
        best = data.best
        rows.append(("best weights", f"step {best.step}, success {_interval(best, 'success')}"))
    return facts(rows)


def _on_what(data: RunData) -> Html:
    config, rows, evaluations = data.config, data.stored.rows, data.history.evaluations
    tasks = {row["task"] for row in rows}
    played = [("groups in the store", f"{len(rows):,}, of {len(tasks):,} tasks")] if rows else []
    held_out = [("held-out tasks", evaluations[-1].tasks)] if evaluations else []
    about: list[tuple[str, object]] = []
    if config is not None:
        about = [("environment", config.env.title)]
        about += [(f"its {name}", shown(value)) for name, value in config.env.options.items()]
    about += [*played, *held_out]
    seen: list[tuple[str, object]] = []
    for machine in data.machines[-3:]:
        known = ", ".join(f"{name} {value}" for name, value in machine.facts.items())
        seen.append((f"learner's machine from step {machine.step}", known))
    versions = ", ".join(f"{name} {value}" for name, value in data.versions.items())
    return facts([*about, *seen, ("versions", versions or "not recorded")])


def _evaluations(data: RunData) -> Html:
    lines = data.history.evaluations
    if not lines:
        return paragraph("not measured: the run has no evaluation", faint=True)
    names = [n for n in ("success", "reward", "exact") if any(n in e.metrics for e in lines)]
    rows = [
        [line.step, *(_interval(line, name) for name in names), line.tasks, line.failed]
        for line in lines
    ]
    table = grid(["step", *names, "tasks", "failed attempts"], rows)
    most = 12
    body = [table] if len(rows) <= most else [folded(f"all {len(rows)} evaluations", table)]
    body.append(paragraph(f"[low, high]: {INTERVAL}.", faint=True))
    attempts = list(data.evaluated.values())
    if len(attempts) == 2:
        none = dict[str, Comparison]()
        changed = data.read("the comparison", lambda: compare(attempts[1], attempts[0]), none)
        first, last = data.evaluated
        for name, paired in changed.items():
            by = paired.difference
            body.append(paragraph(
                f"{name}, step {last} less step {first}, task by task: "
                f"{paired.better} tasks better, {paired.worse} worse, {paired.same} the same; "
                f"mean {_ends(by.mean, by.low, by.high, sign=True)}"
            ))  # fmt: skip
    return joined(*body)


def _curves(data: RunData) -> Html:
    charts = [_held_out(data.history.evaluations, "success"),
              _held_out(data.history.evaluations, "reward")]  # fmt: skip
    count = len(data.history.steps)
    for group, share in ((SHARES, True), (VALUES, False)):
        for title, lines in group.items():
            drawn = [
                line_of_steps(name, [Point(*point) for point in points_of(data, tag)])
                for name, tag in lines.items()
            ]
            charts.append(Chart(title, drawn, share=share))
    figures = [figure for chart in charts if (figure := draw(chart))]
    if not figures:
        return paragraph("not measured: no step was trained", faint=True)
    note = (
        "Held-out tasks: the band is the 95 % interval over tasks. Training: thin lines are single "
        f"steps; a thick line is the mean of {window(count)} steps, and its band the 95 % interval "
        "of that mean, as if steps were independent. A number is the last value."
    )
    return joined(element("div", *figures, class_="charts"), paragraph(note, faint=True))


def _held_out(lines: Sequence[EvalLine], name: str) -> Chart:
    known = {tag for line in lines for tag in line.metrics}
    parts = sorted(tag for tag in known if tag.endswith(f"/{name}"))
    drawn = []
    for tag in (name, *parts):
        part = tag.rpartition("/")[0].replace("_", " ")
        points = [p for line in lines if (p := measured(line.metrics, tag, line.step))]
        drawn.append(Line(part or ("first temperature" if parts else "mean"), points))
    return Chart(f"{name.capitalize()} on held-out tasks", drawn, share=name == "success")


def _before_after(data: RunData) -> Html:
    steps = list(data.evaluated)
    if len(steps) == 2:
        first, last = (data.evaluated[step] for step in steps)
        chosen = tasks_before_and_after(first, last, (f"step {steps[0]}", f"step {steps[1]}"))
        how = ("The same held-out tasks, played by the first and by the last evaluated weights. "
               "Chosen by rule: a task with more reward, one with less and one with the same, in "
               "turn, in the order of their names.")  # fmt: skip
    else:
        chosen = list(data.stored.trained)
        how = ("The run has no two evaluations whose texts can be read. These are training tasks "
               "that were played twice, furthest apart: the first attempt of the first and of the "
               "last group.")  # fmt: skip
    if not chosen:
        return paragraph("not measured: no task was played both before and after", faint=True)
    return joined(paragraph(how, faint=True), *map(side_by_side.before_and_after, chosen))


def _retries(data: RunData) -> Html:
    rows = [row for row in data.stored.rows if row["gain"] is not None]
    if not rows:
        return paragraph("not measured: the store has no retry", faint=True)
    better = sum(row["gain"] > 0 for row in rows)
    how = (
        f"In {better:,} of {len(rows):,} groups with a retry, a retry earned more than the attempt "
        "it retries. Shown are those that earned most, so they are not typical."
    )
    best = (side_by_side.retry(task, pair) for task, pair in data.stored.retries)
    return joined(paragraph(how, faint=True), *best)


def _costs(data: RunData) -> Html:
    steps = data.history.steps
    if not steps:
        return paragraph("not measured: no step was trained", faint=True)
    parts = [("forward, backward and update", "learner/step_s"), ("waits", "learner/wait_s"),
             ("rows and queries", "learner/queries_s")]  # fmt: skip
    spent: list[tuple[str, object]] = [
        (f"learner's time, {name}", time_span(seconds))
        for name, tag in parts
        if (seconds := total(data, tag)) is not None
    ]
    tokens = total(data, "group/generated_tokens")
    evaluated = sum(one.tokens for attempts in data.evaluated.values() for one in attempts)
    played = f"{evaluated:,} in the evaluations above ({len(data.evaluated)} of them)"
    machine = data.machines[-1].facts if data.machines else {}
    return facts([
        ("from the first step to the last", time_span(steps[-1].time - steps[0].time)),
        *spent,
        ("tokens sampled for steps", "not measured" if tokens is None else f"{tokens:,.0f}"),
        ("tokens sampled to evaluate", played if evaluated else "not measured"),
        *_bill(data),
        ("ranks of the learner", machine.get("ranks", "not recorded")),
        ("GPU of the learner", machine.get("GPU", "none" if machine else "not recorded")),
        ("the run's folder", f"{data.bytes / GIB:.2f} GiB"),
        ("skipped steps", data.skipped), ("hangs of the learner", data.hangs),
    ])  # fmt: skip


def _bill(data: RunData) -> list[tuple[str, object]]:
    """Returns what all processes used, with its amount if anything has a price."""
    used = data.used
    if used is None:
        return [("all tokens, CPU and GPU hours", "not measured")]
    tokens = (f"{used.sampled:,.0f} sampled, {used.read:,.0f} read, "
              f"{used.trained:,.0f} trained")  # fmt: skip
    rows: list[tuple[str, object]] = [
        ("all tokens, evaluations included", tokens),
        ("CPU time of all processes", time_span(used.cpu_s)),
        ("GPU time, each GPU while its process ran", time_span(used.gpu_s)),
    ]
    if data.config is not None and data.config.cost.priced:
        rows.append(("amount at the prices of cost", f"{amount(used, data.config.cost):.2f}"))
    return rows


def _findings(wrong: Sequence[tuple[str, str]]) -> Html:
    if not wrong:
        return paragraph("nothing")
    return listed(f"{what}{' → ' if remedy else ''}{remedy}" for what, remedy in wrong)


def _settings(data: RunData) -> Html:
    parts: list[Html] = []
    if data.config is not None:
        changed = changed_settings(data.config)
        rows = [(key, shown(value)) for key, value in changed.items()]
        parts.append(grid(["differs from the default", "value"], rows) if rows else
                     paragraph("all settings have their defaults"))  # fmt: skip
    whole = element("div", data.config_text or "not readable", class_="text")
    return joined(*parts, folded("all settings", whole))


def not_measured(data: RunData, alive: bool) -> list[str]:
    """Says what a reader of the page might miss, and why it is missing."""
    known, evaluations = tags(data), data.history.evaluations
    found = ["other seeds: this is one run, and its intervals are over tasks or steps, not seeds"]
    if not evaluations:
        found.append("success on held-out tasks: the run has no evaluation")
    elif len(evaluations) == 1:
        found.append("a change on held-out tasks: the run has one evaluation")
    if "group/success_retry" not in known:
        found.append("retries: no step has any")
    if "learner/kl_reference" not in known:
        found.append("the distance to the reference model")
    priced = data.config is not None and data.config.cost.priced and data.used is not None
    found.append("energy" if priced else "energy and money")
    if _state(data, alive) and data.config is not None:
        left = data.config.learner.steps - data.history.reached
        found.append(f"the run's last {left} steps, which were not trained")
    if data.history.damaged:
        found.append(f"{data.history.damaged} damaged lines of progress.jsonl, which are left out")
    if data.history.cut:
        found.append("the last line of progress.jsonl, which is cut off")
    return found + [f"not readable: {cause}" for cause in data.unread]


def _interval(line: EvalLine, name: str) -> str:
    metrics = line.metrics
    return _ends(metrics.get(name), metrics.get(f"{name}_low"), metrics.get(f"{name}_high"))


def _ends(mean: float | None, low: float | None, high: float | None, *, sign: bool = False) -> str:
    if mean is None:
        return "–"
    text = f"{mean:+.3g}" if sign else number(mean)
    known = low is not None and high is not None
    return f"{text} [{low:.3g}, {high:.3g}]" if known else f"{text} (no interval)"
