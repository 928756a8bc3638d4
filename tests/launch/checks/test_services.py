"""Addresses of the services, and their keys."""

import socket
from pathlib import Path

import pytest
import zmq

from buffer.wire.curve_keys import generate
from launch.checks.plan_options import PlanOptions
from launch.checks.services import check_addresses, with_reachable_services
from r3l.errors import UserError
from tests.launch.fakes import refused


def test_a_port_in_use_is_named(run: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for option in ("--buffer", "--weights"):
            line = refused("--run", run, option, f"tcp://127.0.0.1:{port}")
            assert f"{option} tcp://127.0.0.1:{port}" in line and "free port" in line
    assert not run.exists()


@pytest.mark.parametrize("host", ["[::1]", "*"])
def test_a_host_is_a_name_or_an_address_of_ipv4(host: str, run: Path) -> None:
    line = refused("--run", run, "--buffer", f"tcp://{host}:7001")
    assert f"--buffer 'tcp://{host}:7001': must look like tcp://" in line


def test_a_port_is_free_again_as_soon_as_its_run_has_ended(tmp_path: Path) -> None:
    with zmq.Context() as context:
        service, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        client.connect(f"tcp://127.0.0.1:{port}")
        client.send(b"hello")
        service.recv_multipart()
        service.close(linger=0)  # who closes first keeps the port for a minute, in TIME_WAIT
        client.close(linger=0)
    check_addresses(PlanOptions(tmp_path, buffer_bind=f"tcp://127.0.0.1:{port}"))


def test_services_of_actors_elsewhere_leave_loopback_with_keys(tmp_path: Path) -> None:
    here = PlanOptions(tmp_path)
    assert here.buffer_bind == here.weights_bind == "tcp://127.0.0.1:*"
    assert with_reachable_services(here, ()) == here
    everywhere, keys = "tcp://0.0.0.0:*", tmp_path / "keys"
    away = PlanOptions(tmp_path, buffer_bind=everywhere, weights_bind=everywhere, keys=keys)
    assert with_reachable_services(here, ("node-1",)) == away
    with pytest.raises(UserError, match=r"--weights .*:7: actors on node-1 cannot"):
        with_reachable_services(
            PlanOptions(tmp_path, weights_bind="tcp://127.0.0.1:7"), ("node-1",)
        )


def test_keys_that_are_there_must_be_those_of_every_role(tmp_path: Path) -> None:
    everywhere = "tcp://0.0.0.0:*"
    open_to_all = PlanOptions(tmp_path, buffer_bind=everywhere, weights_bind=everywhere)
    generate(tmp_path / "keys")
    assert with_reachable_services(open_to_all, ()).keys == tmp_path / "keys"
    (tmp_path / "keys" / "learner.json").unlink()
    with pytest.raises(UserError, match=r"learner\.json"):
        with_reachable_services(open_to_all, ())
