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

from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.published.arpo import ARPO
from r3l.algorithms.published.critique_grpo import CritiqueGRPO
from r3l.algorithms.published.dapo import DAPO
from r3l.algorithms.published.early_experience import EarlyExperience
from r3l.algorithms.published.exit import ExIt
from r3l.algorithms.published.forward_kl import ForwardKL
from r3l.algorithms.published.grpo import GRPO
from r3l.algorithms.published.gspo import GSPO
from r3l.algorithms.published.hill import HiLL
from r3l.algorithms.published.opmd import OPMD
from r3l.algorithms.published.pope import POPE
from r3l.algorithms.published.prefix_rl import PrefixRL
from r3l.algorithms.published.r3 import R3
from r3l.algorithms.published.raft import RAFT
from r3l.algorithms.published.reflect_grpo import ReflectGRPO
from r3l.algorithms.published.restart_from_success import RestartFromSuccess
from r3l.algorithms.published.rloo import RLOO
from r3l.algorithms.published.rlsd import RLSD
from r3l.algorithms.published.rltf import RLTF
from r3l.algorithms.published.rlvmr import RLVMR
from r3l.algorithms.published.sdpo import SDPO
from r3l.algorithms.published.spear import SPEAR
from r3l.algorithms.r3l import R3L
from r3l.errors import UserError
from r3l.settings.error_text import one_line
from r3l.settings.section import in_full
from r3l.settings.user_class import find


def _validated(value: Any, known: ValidatorFunctionWrapHandler) -> Algorithm:
    """Validates the settings of an algorithm: a known one (r3l by default) or the user's own."""
    value = in_full(value)
    if not isinstance(value, dict):
        own = isinstance(value, Algorithm) and ".py:" in value.name
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
    kind: type[Algorithm] = find("algorithm", path, {}, Algorithm)
    name: Any = Literal[path]
    own = create_model(kind.__name__, __base__=kind, __module__=kind.__module__, name=(name, path))
    return create_model("Settings", algorithm=(own, ...))


def _written(
    value: Algorithm, known: SerializerFunctionWrapHandler, info: SerializationInfo
) -> Any:
    return value.model_dump(mode=info.mode) if ".py:" in value.name else known(value)


AnyAlgorithm = Annotated[
    R3L
    | GRPO
    | DAPO
    | GSPO
    | OPMD
    | RAFT
    | ReflectGRPO
    | CritiqueGRPO
    | RLOO
    | R3
    | ARPO
    | SPEAR
    | EarlyExperience
    | RLVMR
    | PrefixRL
    | POPE
    | ExIt
    | RestartFromSuccess
    | RLTF
    | HiLL
    | SDPO
    | RLSD
    | ForwardKL,
    Field(discriminator="name"),
    WrapValidator(_validated),
    WrapSerializer(_written),
]
"""The settings of any algorithm; `name` selects the class."""

REGISTRY: dict[str, type[Algorithm]] = {
    kind.model_fields["name"].default: kind for kind in get_args(get_args(AnyAlgorithm)[0])
}
