"""A real broker for every test that wants one."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyed import streams
from qafel.errors import MissingExtraError
from qafel.federation.broker import Broker, executable
from qafel.federation.keys import Keys

try:
    executable()
except MissingExtraError:
    pytest.skip("there is no nats-server on PATH or beside Python", allow_module_level=True)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker") as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of two federations: ``t`` with six clients, ``u`` with two."""
    path = tmp_path_factory.mktemp("keys") / "new"
    Keys(path).new("t", range(6))
    Keys(path).new("u", range(2))
    return path


@pytest.fixture(scope="module")
def keyed_broker(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for the tests of a module; it admits the keys of ``folder`` and has the streams of ``t``."""
    with Broker(tmp_path_factory.mktemp("broker"), keys=folder) as started:
        asyncio.run(streams(started, folder))
        yield started
