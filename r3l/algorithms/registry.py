"""Finds an algorithm by name, or a user's own by path. Does not import torch. A new algorithm of
r3l needs a module in `published/` and an entry in `AnyAlgorithm`."""

from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
    create_model,
)

from r3l.algorithms.algorithm import AlgorithmConfig
from r3l.algorithms.published.arpo import ARPOConfig
from r3l.algorithms.published.critique_grpo import CritiqueGRPOConfig
from r3l.algorithms.published.dapo import DAPOConfig
from r3l.algorithms.published.early_experience import EarlyExperienceConfig
from r3l.algorithms.published.grpo import GRPOConfig
from r3l.algorithms.published.gspo import GSPOConfig
from r3l.algorithms.published.opmd import OPMDConfig
from r3l.algorithms.published.r3 import R3Config
from r3l.algorithms.published.raft import RAFTConfig
from r3l.algorithms.published.reflect_grpo import ReflectGRPOConfig
from r3l.algorithms.published.rloo import RLOOConfig
from r3l.algorithms.published.rlvmr import RLVMRConfig
from r3l.algorithms.published.spear import SPEARConfig
from r3l.algorithms.r3l import R3LConfig
from r3l.errors import UserError
from r3l.settings.error_text import one_line
from r3l.settings.section import in_full
from r3l.settings.user_class import find


def _validated(value: Any, known: ValidatorFunctionWrapHandler) -> AlgorithmConfig:
    """Validates the settings of an algorithm: a known one (r3l by default) or the user's own."""
    value = in_full(value)
    if not isinstance(value, dict):
        own = isinstance(value, AlgorithmConfig) and ".py:" in value.name
        return value if own else known(value)  # type: ignore[no-any-return]
    value = {"name": "r3l", **value}
    path = str(value["name"])
    if ".py:" not in path:
        return known(value)  # type: ignore[no-any-return]
    root = _with_own(path)
    try:
        checked: Any = root.model_validate({"algorithm": value})
    except ValidationError as error:
        raise UserError(one_line(root, error)) from None
    return checked.algorithm  # type: ignore[no-any-return]


@cache
def _with_own(path: str) -> type[BaseModel]:
    """Returns a settings class with one field, `algorithm`. The type of the field is the user's
    class at `path`. The algorithm's `name` must be `path`."""
    kind: type[AlgorithmConfig] = find("algorithm", path, {}, AlgorithmConfig)
    name: Any = Literal[path]
    own = create_model(kind.__name__, __base__=kind, __module__=kind.__module__, name=(name, path))
    return create_model("Settings", algorithm=(own, ...))


def _written(
    value: AlgorithmConfig, known: SerializerFunctionWrapHandler, info: SerializationInfo
) -> Any:
    return value.model_dump(mode=info.mode) if ".py:" in value.name else known(value)


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
    | SPEARConfig
    | EarlyExperienceConfig
    | RLVMRConfig,
    Field(discriminator="name"),
    WrapValidator(_validated),
    WrapSerializer(_written),
]
"""The settings of any algorithm; `name` selects the class."""

REGISTRY: dict[str, type[AlgorithmConfig]] = {
    kind.model_fields["name"].default: kind for kind in get_args(get_args(AnyAlgorithm)[0])
}
