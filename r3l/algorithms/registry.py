"""The algorithms by name: R³L and the baselines of its paper.

Adding one: a file with its settings class (`name`, the fields with the published defaults, and
`build`), and that class in `AnyAlgorithm`. Importing this module does not import torch.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field

from r3l.algorithms.algorithm import AlgorithmConfig
from r3l.algorithms.baselines.critique_grpo import CritiqueGRPOConfig
from r3l.algorithms.baselines.dapo import DAPOConfig
from r3l.algorithms.baselines.gspo import GSPOConfig
from r3l.algorithms.baselines.opmd import OPMDConfig
from r3l.algorithms.baselines.raft import RAFTConfig
from r3l.algorithms.baselines.reflect_grpo import ReflectGRPOConfig
from r3l.algorithms.baselines.rloo import RLOOConfig
from r3l.algorithms.grpo import GRPOConfig
from r3l.algorithms.r3l import R3LConfig
from r3l.algorithms.replay.arpo import ARPOConfig
from r3l.algorithms.replay.r3 import R3Config
from r3l.algorithms.replay.spear import SPEARConfig
from r3l.section import in_full


def _named(value: Any) -> Any:
    """The settings with a name: r3l's if none is given."""
    value = in_full(value)
    return {"name": "r3l", **value} if isinstance(value, dict) else value


AnyAlgorithm = Annotated[
    R3LConfig
    | GRPOConfig
    | DAPOConfig
    | GSPOConfig
    | OPMDConfig
    | RAFTConfig
    | ReflectGRPOConfig
    | CritiqueGRPOConfig
    | RLOOConfig
    | R3Config
    | ARPOConfig
    | SPEARConfig,
    Field(discriminator="name"),
    BeforeValidator(_named),
]
"""The settings of any one algorithm, told apart by `name`."""

REGISTRY: dict[str, type[AlgorithmConfig]] = {
    kind.model_fields["name"].default: kind for kind in get_args(get_args(AnyAlgorithm)[0])
}
