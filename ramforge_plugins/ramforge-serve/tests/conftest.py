"""One server for most tests: opening a model takes longer than asking it."""

from __future__ import annotations

import pytest
from serving import listening, service_of


@pytest.fixture(scope="session")
def service():
    with service_of(ctx=1024) as made:
        yield made


@pytest.fixture(scope="session")
def url(service):
    with listening(service) as address:
        yield address
