"""The table of backends."""

import pytest

from launch.backends.backend import Backend
from launch.backends.registry import BACKENDS, LOCAL, backend


@pytest.mark.parametrize("name", BACKENDS)
def test_each_name_has_its_backend(name: str) -> None:
    assert isinstance(backend(name), Backend)


def test_only_a_cluster_has_nodes_and_only_ray_moves_actors() -> None:
    assert [name for name in BACKENDS if not backend(name).has_nodes] == [LOCAL]
    assert [name for name in BACKENDS if backend(name).starts_later] == ["slurm"]
    assert [name for name in BACKENDS if backend(name).moves_actors] == ["ray"]
