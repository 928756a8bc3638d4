"""Chunks of published weights as objects of Ray's store: one copy a node, in shared memory.

    learner ── object a chunk ─► store of its node ─► store of another node ─► its engines
        └── references ─► Registry (an actor of Ray) ── references ──────────────┘

An object is what a subscriber with the previous version needs: a patch, or the whole chunk. It
begins with a keyed checksum (r3l.weights.keyed_sums), if there is a key. Ray itself neither
encrypts nor checks what its nodes send each other.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from r3l.errors import WeightsError
from r3l.weights.chunks import Chunk
from r3l.weights.keyed_sums import SUM_BYTES, is_genuine, keyed_sum
from r3l.weights.manifest import Manifest

NAMESPACE = "r3l"
WHOLE = -1
"""The base of a chunk that is not a patch."""
KEPT = 2
"""Versions whose objects are kept."""
BEGIN_S = 60.0
"""Seconds that Ray may take to start the registry or to take its references."""
Named = tuple[list[int], list[Any]]
"""For each chunk of a version: the version that it builds on, or WHOLE, and Ray's reference."""


class Registry:
    """An actor of Ray that knows the references of the newest versions."""

    def __init__(self) -> None:
        self._versions: dict[int, Named] = {}

    def put(self, version: int, bases: list[int], references: list[Any]) -> None:
        """Adds a version, and forgets old ones."""
        self._versions.pop(version, None)
        self._versions[version] = bases, references
        while len(self._versions) > KEPT:
            del self._versions[next(iter(self._versions))]

    def of(self, version: int) -> Named | None:
        """Returns a version, or None if it is not known."""
        return self._versions.get(version)


class RayStore:
    """Puts versions into Ray's store, or gets them from it. `origin`: the publisher's id. `key`:
    the key of keyed checksums."""

    def __init__(self, origin: str, key: bytes | None = None) -> None:
        self.origin, self.key = origin, key
        self._registry: Any = None
        self._held: deque[list[Any]] = deque(maxlen=KEPT)  # or Ray would remove the objects

    def hand_out(self, manifest: Manifest, chunks: Sequence[Chunk]) -> None:
        """Puts a version into the store. Lets through any error that Ray raises."""
        ray = connect()
        if self._registry is None:
            self._registry = self._start_registry(ray)
        bases, references = [], []
        for index, chunk in enumerate(chunks):
            base = chunk.patches[-1].base if chunk.patches else WHOLE
            body = chunk.patches[-1].to_wire() if chunk.patches else chunk.data.tobytes()
            bases.append(base)
            references.append(ray.put(self._signed(manifest.version, index, base, body)))
        self._held.append(references)
        put = self._registry.put.remote(manifest.version, bases, references)
        try:
            ray.get(put, timeout=BEGIN_S)
        except Exception:
            self._registry = None  # the next version starts another one
            raise

    def find(self, version: int, timeout_s: float) -> Named:
        """Returns what the store has of a version. Raises WeightsError if it has nothing."""
        ray = connect()
        try:
            registry = ray.get_actor(_name(self.origin), namespace=NAMESPACE)
            found: Named | None = ray.get(registry.of.remote(version), timeout=timeout_s)
        except (ray.exceptions.RayError, ValueError) as error:
            raise _failed(f"no registry ({_first_line(error)})") from error
        if found is None:
            raise _failed(f"it has no version {version}", "ray_other_version")
        return found

    def get(
        self, version: int, wanted: Sequence[tuple[int, int, Any]], timeout_s: float
    ) -> list[memoryview]:
        """Gets the bytes of chunks (index, base, reference). Raises WeightsError if they do not
        arrive in time, or were changed on their way."""
        ray = connect()
        try:
            objects = ray.get([reference for *_, reference in wanted], timeout=timeout_s)
        except ray.exceptions.RayError as error:
            raise _failed(f"a chunk did not arrive ({_first_line(error)})") from error
        pairs = zip(wanted, objects, strict=True)
        return [self._body(version, index, base, found) for (index, base, _), found in pairs]

    def _start_registry(self, ray: Any) -> Any:
        """Starts the registry on this node, so that it does not end when another node does."""
        strategies = ray.util.scheduling_strategies
        here = ray.get_runtime_context().get_node_id()
        options = {
            "name": _name(self.origin),
            "namespace": NAMESPACE,
            "num_cpus": 0,
            "scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(here, soft=False),
        }
        return ray.remote(Registry).options(**options).remote()

    def _signed(self, version: int, index: int, base: int, body: bytes) -> bytes:
        if self.key is None:
            return body
        return keyed_sum(self.key, [self._place(version, index, base), body]) + body

    def _body(self, version: int, index: int, base: int, found: object) -> memoryview:
        if not isinstance(found, bytes):
            raise _failed(f"chunk {index} is not bytes", "forged")
        if self.key is None:
            return memoryview(found)
        claimed, body = found[:SUM_BYTES], memoryview(found)[SUM_BYTES:]
        if not is_genuine(self.key, [self._place(version, index, base), body], claimed):
            raise _failed(f"chunk {index} has the wrong keyed checksum", "forged")
        return body

    def _place(self, version: int, index: int, base: int) -> bytes:
        return f"{self.origin} {version} {index} {base}".encode()


def connect() -> Any:
    """Returns the module `ray`, connected to this node's part of the cluster. Raises WeightsError
    if there is none, ImportError without Ray."""
    import ray

    if not ray.is_initialized():
        try:
            ray.init(
                address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"
            )
        except Exception as error:  # Ray raises many kinds
            raise _failed(f"no cluster to connect to ({_first_line(error)})") from error
    return ray


def _name(origin: str) -> str:
    return f"r3l-weights-{origin}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _failed(why: str, cause: str = "ray") -> WeightsError:
    return WeightsError(f"weights: Ray's object store: {why}", cause=cause)
