from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sandboxes.docker.engine import ContainerEngine
from tests.sandboxes.attacks.conftest import SECRET, WAIT_S, Attackers, Weak, attempts, listening, own_addresses

MODULES = ("files", "network", "privileges", "pid1")
ATTEMPTS = [name for module in MODULES for name in attempts(module)]
Report = dict[str, dict[str, Any]]

RIGHTS = ("SYS_ADMIN", "SYS_PTRACE", "SYS_NICE", "SYSLOG", "MKNOD", "NET_ADMIN", "NET_RAW", "DAC_READ_SEARCH")

# What a container without any walls lets happen, which shows that the attempts above can succeed. Left out is what
# would change this machine, or what its kernel does not offer.
WITHOUT_WALLS = (
    "secret_by_its_path", "secret_through_every_process", "open_files_of_pid_1", "log_of_the_kernel", "block_device",
    "other_devices",    "sockets_of_the_engine", "core_pattern", "writable_kernel_settings", "release_agent",
    "writable_places", "change_the_input", "change_the_init", "change_names", "unexpected_mounts",
    "exchange_of_another_run", "shared_memory_of_the_machine",
    "interfaces", "raw_packets", "frames_of_the_card", "vsock",
    "become_root", "capabilities", "missing_filter", "user_namespace", "other_namespaces", "user_namespace_by_clone",
    "mount", "bpf", "io_uring", "personality", "more_than_ones_share",
)  # fmt: skip
# The same user as in the sandbox, in the machine's network, without seccomp and with its setuid programs.
AS_A_USER = (
    "secret_through_the_root_of_pid_1", "environment_of_pid_1", "memory_of_pid_1",
    "ports_of_the_machine", "another_container", "abstract_socket_of_the_machine", "unix_socket_of_the_machine",
    "door_of_another_run", "interfaces", "setuid_program", "missing_filter", "keyrings",
)  # fmt: skip


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Put on this machine what an attacker would like; return where it is."""
    folder = tmp_path_factory.mktemp("machine")
    resolver = [line.split() for line in Path("/etc/resolv.conf").read_text().splitlines() if line.strip()]
    (folder / "id_ed25519").write_text(SECRET)
    exchange = folder / "exchange"
    exchange.mkdir()
    shared = Path("/dev/shm") / f"ajet-attack-{uuid.uuid4().hex}"
    shared.write_text(SECRET)
    abstract = f"ajet-attack-{uuid.uuid4().hex}"
    with ExitStack() as stack:
        stack.callback(shared.unlink)
        every_address = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        port = stack.enter_context(every_address).getsockname()[1]
        for address in (f"\0{abstract}", f"{exchange}/server.sock", f"{folder}/service.sock"):
            stack.enter_context(listening(address))
        for path in (folder, *folder.rglob("*")):  # open to any user: what keeps an attacker out are the walls alone
            path.chmod(0o777)
        yield {
            "secret_path": str(folder / "id_ed25519"),
            "other_exchange": str(exchange),
            "unix": f"{folder}/service.sock",
            "abstract": abstract,
            "port": port,
            "addresses": own_addresses(),
            "folder": str(folder),
            "resolvers": [word for line in resolver if line[0] == "nameserver" for word in line[1:]],
            "search": [word for line in resolver if line[0] == "search" for word in line[1:]],
        }


@pytest.fixture(scope="module")
def reports(
    engine: ContainerEngine, attackers: Attackers, weak: Weak, machine: dict[str, Any]
) -> tuple[Report, Report, Report]:
    """Return what was reported from the sandbox, from a container without walls, and as a user of this machine."""
    facts = {**machine, "neighbours": [weak.neighbour(machine)]}
    folder = machine["folder"]
    open_ = weak.run(
        "probing.py", "-", "files", "network", "privileges", facts=facts, user="0:0", cap_add=list(RIGHTS),
        security_opt=["seccomp=unconfined", "apparmor=unconfined"], pid_mode="host", ipc_mode="host",
        network_mode=weak.network, devices=["/dev/kmsg", "/dev/loop0"],
        binds=[f"{folder}:{folder}", f"{engine.host.removeprefix('unix://')}:/run/docker.sock"],
    )  # fmt: skip
    attackers.facts = facts
    exchange = Path(folder) / "own"
    exchange.mkdir()
    attack = attackers.run(
        "probing.py", "/workspace/results/report.json", *MODULES, exchange=exchange, ports={}, time_limit_s=180.0
    )
    user = weak.run(
        "probing.py", "-", *MODULES[:3], facts=facts, network_mode="host",
        security_opt=["seccomp=unconfined"], binds=[f"{folder}:{folder}"],
    )  # fmt: skip
    for container in (open_, user):
        container.wait(timeout=WAIT_S)
    without, plain = (json.loads(container.logs(stdout=True, stderr=False)) for container in (open_, user))
    return attack.report(), without, plain


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attacker_gets_nothing(reports: tuple[Report, Report, Report], name: str) -> None:
    found = reports[0][name]
    assert found["got"] is None
    assert found["said"] != "hung"


@pytest.mark.parametrize(
    ("where", "name"), [*((1, name) for name in WITHOUT_WALLS), *((2, name) for name in AS_A_USER)]
)
def test_the_same_attempt_succeeds_without_walls_or_as_a_plain_user_of_the_machine(
    reports: tuple[Report, Report, Report], where: int, name: str
) -> None:
    assert reports[where][name]["got"] is not None, reports[where][name]


def test_the_attempts_were_told_where_to_look(machine: dict[str, Any]) -> None:
    assert Path(machine["secret_path"]).read_text() == SECRET
    assert os.stat(machine["unix"])
    with socket.create_connection(("127.0.0.1", machine["port"])):
        pass
