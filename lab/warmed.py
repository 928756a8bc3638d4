"""Reads how a policy was warmed up, from the record in its folder."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from envs.base import Skill
from learner.warmup.recipe import RECORD
from r3l.errors import UserError
from r3l.rollout.prompts import GuidanceText


class Warmed(NamedTuple):
    """A world that a policy was warmed up for. `quality`: empty if not measured. `steps`: of the
    optimizer. `guidance_text`: what its demonstrated retries were shown."""

    env: str
    options: dict[str, Any]
    skill: Skill
    quality: dict[str, float]
    steps: int
    guidance_text: GuidanceText


def warmed_for(folder: Path) -> list[Warmed]:
    """Read which worlds the policy in `folder` was warmed up for, with all their options
    (envs.registry.all_options). Raises UserError if the record is missing or cannot be read."""
    path = folder / RECORD
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        skill, steps = Skill(**made["skill"]), made["steps"]
        quality, shown = made.get("quality", {}), made.get("guidance_text", "advice")
        return [
            Warmed(
                world["env"], world["options"], skill, quality.get(world["env"], {}), steps, shown
            )
            for world in made["worlds"]
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else repr(error)
        raise UserError(
            f"{path}: not a record of a warm-up ({reason}); make the folder with r3l-learner warmup"
        ) from None
