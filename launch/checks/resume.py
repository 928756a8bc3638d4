"""Checks a resumed run: which settings have changed, and whether any steps are left."""

from pathlib import Path

from buffer.storage.store import Store
from learner.checkpoint import CHECKPOINTS, latest, read_state
from r3l.errors import SchemaVersionError, UserError
from r3l.files import hub_cache, hub_data_set
from r3l.files.hub_cache import Repository
from r3l.models.model_folder import model_digest
from r3l.models.model_path import model_path
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import RunFolder
from r3l.settings.section import flat_settings

FIXED = (
    "env.name",
    "env.options",
    "env.others",
    "algorithm.name",
    "seed",
    "learner.groups_per_step",
    "model",
)
"""Settings that identify a run; they may change only with --force."""


def changed_settings(run: Path, config: RunConfig, *, force: bool) -> tuple[str, ...]:
    """Returns a line for each setting of the run that `config` changes. Without `force`, refuses
    changes to FIXED settings."""
    known = RunFolder(run).own_settings()
    before, after = (flat_settings(each.model_dump(mode="json")) for each in (known, config))
    if _same_model(run, model_path(known.model), Path(config.model)):
        before["model"] = config.model  # the folder was moved
    flat = before | after
    changed = [key for key in sorted(flat) if before.get(key) != after.get(key)]
    # If a key is a section in the other settings, the section's values are compared instead.
    keys = [key for key in changed if not any(other.startswith(f"{key}.") for other in flat)]
    lines = tuple(f"{key}: {before.get(key, '–')} -> {after.get(key, '–')}" for key in keys)
    for key, line in zip(keys, lines, strict=True):
        if not force and any(f"{key}.".startswith(f"{fixed}.") for fixed in FIXED):
            raise UserError(
                f"run {run}: cannot be resumed with a changed setting ({line}); start a new run "
                "with --run, or add --force to continue this run with the change"
            )
    return lines


def check_data_sets(run: Path, *, force: bool) -> None:
    """Without `force`, refuses a resume that reads data sets of the hub at other commits, because
    numbered tasks would then have other rows. Call this after the tasks were read."""
    for name, begun in RunFolder(run).data_sets().items():
        at = hub_data_set.commits.get(name, begun)
        if at != begun and not force:
            kept = hub_cache.reference(Repository(name, kind="dataset"))
            raise UserError(
                f"run {run}: reads data set {name} at commit {begun:.8}, but the cache is at "
                f"{at:.8}, whose rows may differ; type hf download {name} --repo-type dataset "
                f"--revision {begun} and write that commit into {kept}, or add --force"
            )


def check_store(store: Path) -> None:
    """Refuses a store of another schema. The buffer reports whatever else is wrong with it."""
    try:
        Store(store, read_only=True).close()
    except SchemaVersionError as error:
        raise UserError(str(error)) from None
    except UserError:
        return  # no store yet, or this process has it open too


def nothing_to_do(run: Path, config: RunConfig) -> str:
    """Returns a line to print if the run is finished, otherwise "". Loads no model."""
    folder = RunFolder(run)
    newest = latest(run / CHECKPOINTS) if folder.exists else None
    done = read_state(newest).version if newest else 0
    steps = config.learner.steps
    finished = (run / "model" / "config.json").is_file() and (
        not config.eval.tasks or done in {line.step for line in folder.evaluations()}
    )
    if done < steps or (done == steps and not finished):
        return ""
    have = f"all {steps} steps are done" if done == steps else f"{done} steps are already done"
    return (
        f"run {run}: {have}, there is nothing to do; for more: "
        f"--resume --steps {done + max(done, 1)}; the model: {run / 'model'}"
    )


def _same_model(run: Path, before: Path, after: Path) -> bool:
    """Whether two folders hold the same model. If the run has a checkpoint, returns True and leaves
    the comparison to `check_checkpoint`."""
    if before == after or latest(run / CHECKPOINTS) is not None:
        return True
    return before.is_dir() and model_digest(before) == model_digest(after)
