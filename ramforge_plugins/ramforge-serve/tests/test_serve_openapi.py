"""Requests made up from the OpenAPI document: the server answers as the document says, and never 500."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as conformance
from serving import get, listening, service_of


@pytest.fixture(scope="module")
def small():
    """A context that is soon full: what is asked for has no bound on its tokens."""
    with service_of(ctx=64) as service, listening(service) as url:
        yield url


def test_h18_no_request_is_a_fault_of_the_server(small):
    def meets(operation):
        @given(case=operation.as_strategy())
        @settings(
            max_examples=12,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def each(case):
            case.call_and_validate(
                timeout=60,
                checks=[
                    checks.not_a_server_error,
                    conformance.status_code_conformance,
                    conformance.content_type_conformance,
                    conformance.response_schema_conformance,
                ],
            )

        each()

    operations = [
        found.ok() for found in schemathesis.openapi.from_url(f"{small}/openapi.json").get_all_operations()
    ]
    assert len(operations) > 12
    for operation in operations:
        meets(operation)


def test_the_document_describes_every_route(small):
    paths = get(f"{small}/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/embeddings", "/api/chat", "/tokenize", "/status"} <= paths.keys()
    for methods in paths.values():
        for operation in methods.values():
            assert {"200", "4XX", "5XX"} == operation["responses"].keys()
