"""The OpenAPI document says what is served, no more and no less, and holds under whatever is sent to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from swarm.server.openapi import OPERATIONS, Operation, openapi
from tests.golden import assert_golden
from tests.swarm.server.http.test_control import routes
from tests.swarm.server.support import job
from tests.swarm.server.threads import Threaded, threaded

EXAMPLES = 12
LAST = ("load_job", "start_engine", "stop_engine")
CONFORMS = [status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    wanted = job(steps=1000, lease_ttl_s=3600, drain_timeout_s=3600, max_context=4096)
    with threaded(tmp_path_factory.mktemp("served"), wanted) as running:
        yield running


def test_every_served_route_is_in_the_document_and_nothing_else(server: Threaded) -> None:
    served = {(method, path) for method, path in routes(server.served) if method != "HEAD"}
    assert served == {(operation.method, operation.path) for operation in OPERATIONS}


def test_the_document_is_whole(server: Threaded) -> None:
    document = openapi()
    names = [entry["operationId"] for path in document["paths"].values() for entry in path.values()]
    assert sorted(names) == sorted(operation.name for operation in OPERATIONS)
    known = set(document["components"]["schemas"])
    assert {found.rpartition("/")[2] for found in re.findall(r"'\$ref': '([^']+)'", str(document))} <= known
    assert {"Job", "Lease", "Status", "EpisodeRecord", "Error"} <= known
    answer = requests.get(f"{server.served.url}/openapi.json", headers=key(server.served.admin), timeout=120)
    assert answer.json() == document


def test_the_document_is_the_one_that_clients_were_written_for() -> None:
    assert_golden(json.dumps(openapi(), sort_keys=True))


@pytest.mark.slow
def test_only_the_keys_the_document_names_open_a_door(server: Threaded) -> None:
    served = server.served
    for operation in OPERATIONS:
        lease = server.run(served.begin("keys", kind="eval"))
        held = {"model": lease["api_key"], "lease": lease["lease_token"]}
        for role in ("admin", "client", "viewer"):
            held[role] = served.server.keys.role(role)  # type: ignore[arg-type]
        for kind, token in held.items():
            if operation.name in LAST and kind in operation.roles:
                continue  # they work; the test of the job's life shows it
            path = operation.path.replace("{episode_id}", lease["episode_id"])
            asked: dict[str, Any] = {"headers": key(token), "data": b"", "timeout": 10, "stream": True}
            allowed = not (operation.roles or operation.uses) or kind in operation.roles or kind in operation.uses
            with requests.request(operation.method, served.url + path, **asked) as found:  # events never end
                assert (found.status_code != 403) == allowed, (operation.name, kind)


def sendings() -> list[Any]:
    """Every operation with right input, and with wrong input where there is any to get wrong; a stop comes last."""
    ordered = sorted(OPERATIONS, key=lambda operation: operation.name in LAST)
    return [
        pytest.param(operation, mode, id=f"{operation.name}-{mode.value}")
        for operation in ordered
        for mode in GenerationMode
        if mode is GenerationMode.POSITIVE or operation.body or operation.query
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "mode"), sendings())
def test_whatever_is_sent_is_answered_as_the_document_says(
    server: Threaded, operation: Operation, mode: GenerationMode
) -> None:
    document = schemathesis.openapi.from_dict(openapi())
    described = document[operation.path][operation.method]
    lease = server.run(server.served.begin("fuzz", kind="eval"))
    known = {"episode_id": lease["episode_id"]} if "{episode_id}" in operation.path else None
    checks: list[Any] = [*CONFORMS]
    if operation.name != "stop_engine" and not operation.path.startswith("/v1/"):
        checks += [negative_data_rejection]

    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=described.as_strategy(mode, path_parameters=known))
    def send(case: Any) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), int | float):
            case.body["wait_s"] = 0  # nobody waits here
        if operation.name == "events" and mode is GenerationMode.POSITIVE:
            case.query = {**(case.query or {}), "wait_s": 0}
        answer = case.call(base_url=server.served.url, headers=key(_key(server, operation, lease)), timeout=120)
        case.validate_response(answer, checks=checks)
        if answer.status_code != 503:  # in its place: the engine is off once it was stopped
            case.validate_response(answer, checks=[not_a_server_error])
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert error["message"]
            assert answer.status_code < 500 or error.get("code") != "server_error"

    send()


def key(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _key(server: Threaded, operation: Operation, lease: dict[str, Any]) -> str:
    if operation.roles or not operation.uses:
        return server.served.admin
    return str(lease["api_key"] if "model" in operation.uses else lease["lease_token"])
