"""Finds the YAML file with a run's settings: a preset, the user's file, or the run's own."""

from pathlib import Path

from launch.checks.of_command_line import check_exists_only_if
from r3l.errors import UserError, did_you_mean
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import RunFolder

PRESETS = Path(__file__).parents[1] / "presets"
DEMO = PRESETS / "demo.yaml"


def settings_file(
    config: Path | None, preset: str | None, run: Path, *, resume: bool
) -> tuple[Path | None, Path | None]:
    """Returns the YAML file with a run's settings, and the file with the shipped policy's defaults.

    The settings file is None without --config, --resume and --preset. The defaults file is None if
    the settings file is the run's own. Raises UserError if options exclude each other, or if the
    run or preset does not exist.
    """
    if preset is not None and (config is not None or resume):
        other = "--resume" if resume else "--config"
        raise UserError(f"--preset {preset}: cannot be combined with {other}; leave one out")
    if config is not None:
        return config, DEMO
    if resume:
        check_exists_only_if(run, resume=True)
        RunFolder(run).own_settings()  # refuses an empty file, which would mean the defaults
        return RunFolder(run).own_config, None
    if preset is not None:
        return preset_file(preset), DEMO
    return None, DEMO


def preset_file(name: str) -> Path:
    """Returns the file of a preset. Raises UserError if there is no preset called `name`."""
    known = {path.stem: path for path in sorted(PRESETS.glob("*.yaml"))}
    if name not in known:
        guess = did_you_mean(name, known)
        raise UserError(f"--preset {name}: unknown{guess}; the presets are {', '.join(known)}")
    return known[name]


def check_model_is_named(config: RunConfig, preset: str | None) -> None:
    """Refuses a preset without a model, unless the user names one. The demo needs none: it trains
    the shipped policy in its world."""
    if preset == DEMO.stem and config.env.name == "workshop":
        return
    if preset is not None and "model" not in config.model_fields_set:
        raise UserError(f"--preset {preset}: names no model; give a model folder with --model")
