"""The example of a run on Kubernetes, as far as it can be checked without a cluster."""

from pathlib import Path
from typing import Any

import yaml

from buffer.wire.curve_keys import generate
from r3l.run import config
from tests.docs.test_pages import COMMANDS, parsed

FILE = Path(__file__).parents[2] / "examples" / "kubernetes.yaml"
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(FILE.read_text("utf-8")))
PODS = {
    found["metadata"]["name"]: found["spec"]["template"]
    for found in OBJECTS
    if found["kind"] in ("StatefulSet", "Job", "Deployment")
}


def containers() -> dict[str, dict[str, Any]]:
    return {name: pod["spec"]["containers"][0] for name, pod in PODS.items()}


def options(name: str) -> dict[str, Any]:
    """The options of a container's command, as the command reads them."""
    words = containers()[name]["args"]
    return parsed(COMMANDS[words[0]], words).params


def test_every_command_is_one_that_r3l_understands() -> None:
    assert set(PODS) == {"r3l-buffer", "r3l-learner", "r3l-actor"}
    assert all(options(name) for name in PODS)


def test_the_settings_are_valid(tmp_path: Path) -> None:
    (settings,) = (found["data"] for found in OBJECTS if found["kind"] == "ConfigMap")
    (tmp_path / "config.yaml").write_text(settings["config.yaml"])
    loaded = config.load(tmp_path / "config.yaml")
    assert (loaded.env.name, loaded.algorithm.name, loaded.learner.steps) == (
        "countdown",
        "r3l",
        500,
    )
    assert all(options(name)["config_path"] == Path("/settings/config.yaml") for name in PODS)


def test_services_listen_where_the_others_connect() -> None:
    ports = {
        found["metadata"]["name"]: found["spec"]["ports"][0]["port"]
        for found in OBJECTS
        if found["kind"] == "Service"
    }
    buffer = f"tcp://r3l-buffer:{ports['r3l-buffer']}"
    weights = f"tcp://r3l-learner:{ports['r3l-learner']}"
    actor, learner = options("r3l-actor"), options("r3l-learner")
    assert (actor["buffer_endpoint"], actor["weights_endpoint"]) == (buffer, weights)
    assert buffer in learner.values()
    assert weights.replace("r3l-learner", "0.0.0.0") in learner.values()
    assert options("r3l-buffer")["bind"] == buffer.replace("r3l-buffer", "0.0.0.0")
    selected = {f["metadata"]["name"]: f["spec"]["selector"] for f in OBJECTS
                if f["kind"] == "Service"}  # fmt: skip
    assert all(PODS[name]["metadata"]["labels"] == labels for name, labels in selected.items())


def test_keys_are_those_that_keygen_writes_and_an_actor_has_only_the_clients(
    tmp_path: Path,
) -> None:
    written = {path.name for path in generate(tmp_path / "keys")}
    assert written == {"service.json", "client.json", "learner.json"}
    assert options("r3l-buffer")["keys"] == Path("/keys/service.json")
    assert options("r3l-learner")["keys"] == Path("/keys")
    assert options("r3l-actor")["keys"] == Path("/keys/client.json")
    secrets = {
        name: volume["secret"]
        for name, pod in PODS.items()
        for volume in pod["spec"]["volumes"]
        if "secret" in volume
    }
    assert [item["key"] for item in secrets["r3l-actor"]["items"]] == ["client.json"]
    assert all(secret["defaultMode"] == 0o400 for secret in secrets.values())


def test_every_mounted_volume_exists_and_holds_what_the_commands_name() -> None:
    claims = {f["metadata"]["name"] for f in OBJECTS if f["kind"] == "PersistentVolumeClaim"}
    maps = {f["metadata"]["name"] for f in OBJECTS if f["kind"] == "ConfigMap"}
    for name, pod in PODS.items():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = containers()[name]["volumeMounts"]
        own = {"store"} if name == "r3l-buffer" else set()
        assert {mount["name"] for mount in mounts} == set(volumes) | own
        for volume in volumes.values():
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in {*claims, None}
            assert volume.get("configMap", {}).get("name") in {*maps, None}
        paths = tuple(mount["mountPath"] for mount in mounts)
        named = [value for value in options(name).values() if isinstance(value, Path)]
        assert named and all(str(path).startswith(paths) for path in named)


def test_each_part_has_time_to_end() -> None:
    times = {name: pod["spec"]["terminationGracePeriodSeconds"] for name, pod in PODS.items()}
    assert times == {"r3l-buffer": 30, "r3l-actor": 60, "r3l-learner": 120}
