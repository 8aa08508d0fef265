"""A real broker for every test that wants one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qafel.errors import MissingExtraError
from qafel.federation.broker import Broker, executable

try:
    executable()
except MissingExtraError:
    pytest.skip("there is no nats-server on PATH or beside Python", allow_module_level=True)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker") as started:
        yield started
