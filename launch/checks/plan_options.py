"""Holds the options of a run that is being planned."""

from dataclasses import dataclass
from pathlib import Path

from launch.backends.registry import LOCAL
from launch.topology.machines import RequestedPlaces, parse_learner
from r3l.errors import UserError
from r3l.run.settings.actor import ActorConfig

LOOPBACK = "tcp://127.0.0.1:*"


@dataclass(frozen=True)
class PlanOptions:
    """The options of one run, named like those of r3l-launch.

    `force`: allows changes to settings that identify the run, and a memory estimate that is too
    large. `dry_run`: skips the slow checks (chat template, first steps). `hardware`: describes the
    machines to plan for; None: the real machines. `cluster`: the backend's name. `yes`: consents
    to downloads.
    """

    run: Path
    actors: int = 1
    learner: str = "1cpu"
    buffer_bind: str = LOOPBACK
    weights_bind: str = LOOPBACK
    keys: Path | None = None
    resume: bool = False
    force: bool = False
    dry_run: bool = False
    hardware: str | None = None
    cluster: str = LOCAL
    yes: bool = False

    @property
    def addresses(self) -> dict[str, str]:
        """The services' addresses, keyed by option."""
        return {"--buffer": self.buffer_bind, "--weights": self.weights_bind}

    def places(self, actor: ActorConfig) -> RequestedPlaces:
        """Returns the places that the options request. Raises UserError if an option is wrong."""
        gpus = actor.engine.get("tensor_parallel_size", 1)
        if not isinstance(gpus, int):
            raise UserError(f"actor.engine.tensor_parallel_size={gpus}: must be a number of GPUs")
        return RequestedPlaces(self.actors, *parse_learner(self.learner), gpus)
