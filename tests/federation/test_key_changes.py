"""Keys that are revoked, rotated, renewed, late, expired or damaged; and the process of a broker."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from keyed import T, admitted, party
from parties import run, until, wait_until
from qafel.errors import BrokerError, ConfigError
from qafel.federation.broker import Broker, configuration
from qafel.federation.keys import Entry, Keys, certificates, credentials, read, register


def test_a_revoked_key_loses_its_connection_and_a_new_one_readmits(
    keyed_broker: Broker, folder: Path
) -> None:
    keys, path = Keys(folder), folder / "t" / "client-3.key"
    old = path.read_bytes()

    async def attempt() -> None:
        async with (
            party(keyed_broker.url, path) as one,
            party(keyed_broker.url, folder / "t" / "client-4.key") as other,
        ):
            await asyncio.to_thread(keys.revoke, "t", "client-3", broker=keyed_broker.url)
            await until(lambda: one.is_closed)
            assert other.is_connected
        assert not await admitted(keyed_broker.url, path)
        await asyncio.to_thread(keys.new, "t", [3], broker=keyed_broker.url)  # stays as it is
        assert not await admitted(keyed_broker.url, path)
        await asyncio.to_thread(keys.rotate, "t", "client-3", broker=keyed_broker.url)
        assert await admitted(keyed_broker.url, path)
        (folder / "old.key").write_bytes(old)
        assert not await admitted(keyed_broker.url, folder / "old.key")

    asyncio.run(attempt())
    entry = next(one for one in keys.entries("t") if one.client == 3)
    assert entry == Entry("t", "client-3", 3, entry.created, entry.expires, None, str(path))


def test_a_rotated_key_of_the_server_and_of_the_system_replace_the_old_ones(
    keyed_broker: Broker, folder: Path
) -> None:
    keys, path = Keys(folder), folder / "u" / "server.key"

    async def attempt() -> None:
        async with (
            party(keyed_broker.url, path) as server,
            party(keyed_broker.url, folder / "u" / "operator.key") as other,
        ):
            await asyncio.to_thread(keys.rotate, "u", "server", broker=keyed_broker.url)
            await until(lambda: server.is_closed)
            assert other.is_connected
        assert await admitted(keyed_broker.url, path)
        system = folder / "operator" / "system.key"
        (folder / "old.key").write_bytes(system.read_bytes())
        await asyncio.to_thread(keys.rotate_system, broker=keyed_broker.url)
        assert not await admitted(keyed_broker.url, folder / "old.key")
        assert await admitted(keyed_broker.url, system)

    asyncio.run(attempt())


@pytest.mark.slow
def test_a_late_client_needs_no_restart_and_an_expired_key_is_refused(
    keyed_broker: Broker, folder: Path
) -> None:
    async def attempt() -> None:
        await asyncio.to_thread(Keys(folder).new, "t", [40], broker=keyed_broker.url)
        await asyncio.to_thread(Keys(folder).new, "t", [41], days=10 / 86400)  # the broker uses this folder
        async with (
            party(keyed_broker.url, folder / "t" / "client-40.key") as one,
            party(keyed_broker.url, folder / "t" / "client-41.key") as short,
        ):
            assert b"seq" in (await one.request(T.piece(40), b"x")).data
            await until(lambda: short.is_closed)
            assert one.is_connected
        while await admitted(keyed_broker.url, folder / "t" / "client-41.key"):
            await asyncio.sleep(0.1)  # to the end of the second

    run(attempt())


def test_a_client_has_few_connections(keyed_broker: Broker, folder: Path) -> None:
    async def attempt() -> int:
        async with contextlib.AsyncExitStack() as stack:
            for count in range(10):
                try:
                    await stack.enter_async_context(party(keyed_broker.url, folder / "t" / "client-5.key"))
                except Exception:
                    return count
        return 10

    assert asyncio.run(attempt()) == 4


def test_without_an_address_a_change_waits_for_the_next_start(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    keys.new("t", range(2))
    path = tmp_path / "keys" / "t" / "client-1.key"
    with Broker(tmp_path / "broker", keys=tmp_path / "keys" / "broker") as broker:
        assert asyncio.run(admitted(broker.url, path))
        keys.revoke("t", "client-1")
        assert asyncio.run(admitted(broker.url, path))
        broker.stop()
        broker.start()
        assert not asyncio.run(admitted(broker.url, path))
        assert asyncio.run(admitted(broker.url, tmp_path / "keys" / "t" / "client-0.key"))
    with pytest.raises(BrokerError, match=r"is changed, but not the broker: no broker at "):
        keys.revoke("t", "client-0", broker=broker.url)


def test_mutual_tls_asks_for_a_certificate(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    keys.new("t", [0], mutual=True)
    path = tmp_path / "keys" / "t" / "client-0.key"
    bare = json.loads(path.read_bytes()) | {"certificate": None, "certificate_key": None}
    (tmp_path / "bare.key").write_text(json.dumps(bare), encoding="utf-8")
    with Broker(tmp_path / "broker", keys=tmp_path / "keys") as broker:
        assert asyncio.run(admitted(broker.url, path))
        assert not asyncio.run(admitted(broker.url, tmp_path / "bare.key"))
        keys.revoke("t", "client-0", broker=broker.url)
        assert not asyncio.run(admitted(broker.url, path))


def test_the_files_are_their_owners_and_the_broker_has_no_secret_but_its_own(
    folder: Path, keyed_broker: Broker
) -> None:
    for path in folder.rglob("*"):
        if path.parent.name != "jwt" and path.name != "old.key":
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    for path in (keyed_broker.folder / "broker.conf", keyed_broker.folder / "broker.log"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((keyed_broker.folder / "store").stat().st_mode) == 0o700
    book = register.load(folder)
    assert book is not None
    seeds = [book.operator, book.system.seed]
    for federation in book.federations.values():
        for account in (federation.account, *federation.clients.values()):
            seeds += [account.seed, *account.roles.values()]
    assert len(set(seeds)) == len(seeds)
    public = {path: path.read_text() for path in (folder / "broker").rglob("*") if path.is_file()}
    assert [path.name for path, text in public.items() if "PRIVATE" in text] == ["broker-key.pem"]
    assert not any(seed in text for seed in seeds for text in public.values())
    key = read(folder / "t" / "client-0.key")
    assert key.seed not in repr(key)
    assert not any(seed in (folder / "t" / "client-0.key").read_text() for seed in seeds)


def test_existing_keys_stay_and_certificates_are_renewed(tmp_path: Path) -> None:
    keys, path, pem = Keys(tmp_path), tmp_path / "t" / "client-0.key", tmp_path / "broker" / "broker.pem"
    assert len(keys.new("t", [0])) == 4
    before, certificate = path.read_bytes(), pem.read_bytes()
    assert [made.name for made in keys.new("t", [0, 1])] == ["client-1.key"]
    assert (path.read_bytes(), pem.read_bytes()) == (before, certificate)
    keys.new("t", hosts=["broker.example.org", "::1"])
    assert certificates.hosts_of(pem.read_bytes()) == ["broker.example.org", "::1", "127.0.0.1", "localhost"]
    certificate = pem.read_bytes()
    assert keys.rotate_certificates() == []
    assert certificates.hosts_of(pem.read_bytes())[0] == "broker.example.org"
    assert pem.read_bytes() != certificate
    assert len(keys.rotate_certificates(ca=True)) == 6
    assert read(path).ca == (tmp_path / "broker" / "ca.pem").read_text() != json.loads(before)["ca"]
    assert read(path).jwt == json.loads(before)["jwt"]


def test_bad_files_and_names_get_one_sentence(tmp_path: Path, folder: Path) -> None:
    good = (folder / "t" / "client-0.key").read_text()
    wrong = {
        "": "is damaged: it is not a file of qafel keys",
        "[1]": "is damaged: it is not a file of qafel keys",
        '{"format": 3}': "has format 3 and this version of qafel reads 2",
        '{"format": 2}': "is damaged; make it anew with qafel keys rotate",
        good.replace('"client": 0', '"client": null'): "is damaged; make it anew",
        good.replace('"seed": "SU', '"seed": "XX'): "is damaged; make it anew",
    }
    for text, sentence in wrong.items():
        (tmp_path / "one.key").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=sentence):
            read(tmp_path / "one.key")
    with pytest.raises(ConfigError, match="there is no key"):
        read(tmp_path / "none.key")
    with pytest.raises(ConfigError, match="is a folder, and a key is a file"):
        read(tmp_path)
    key = read(folder / "t" / "client-0.key")
    with pytest.raises(ConfigError, match="starts with tls://"):
        credentials.credentials("nats://127.0.0.1:4222", key)
    for url in ("tls://a:1,nats://b:2", "ws://a:1", "a:1"):
        with pytest.raises(ConfigError, match="must all start with tls://, or all with nats://"):
            credentials.credentials(url, None)
    assert credentials.credentials("nats://a:1", None) == {}
    assert credentials.credentials("tls://a:1", None)["tls"].verify_mode == ssl.CERT_REQUIRED
    for action, sentence in (
        (lambda: Keys(tmp_path).entries(), "there are no keys in"),
        (lambda: Keys(folder).entries("x"), "there is no federation 'x' in this folder; there is t, u"),
        (lambda: Keys(folder).revoke("t", "client-99"), "there is no key of 'client-99'"),
        (lambda: Keys(folder).new("Broker"), "cannot be called 'Broker'"),
        (lambda: Keys(folder).new("t", [-1]), "must be a non-negative integer, got -1"),
        (lambda: Keys(folder).new("t", [9], days=-1), "more than 0 and at most 36,500 days, got -1"),
        (lambda: Keys(folder).new("t", [9], mutual=True), "no certificates for mutual TLS"),
        (lambda: Keys("/proc/keys").new("t"), "cannot write keys to /proc/keys"),
        (lambda: configuration(tmp_path, keys=tmp_path), "has no broker.json, operator.jwt"),
        (lambda: configuration(tmp_path, max_store="lots"), "got 'lots'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            action()
    (tmp_path / "users.json").write_text("{}", encoding="utf-8")
    for action in (lambda: Keys(tmp_path).new("t"), lambda: configuration(tmp_path, keys=tmp_path)):
        with pytest.raises(ConfigError, match=r"old format \(users.json\)"):
            action()
    (tmp_path / "users.json").unlink()
    Keys(tmp_path).new("t")
    (tmp_path / "operator" / "register.json").write_text('{"format": 2}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is damaged: .*; restore it from a copy"):
        Keys(tmp_path).new("t")


RUN = """
import sys, threading, time
from qafel.federation.broker import Broker
made = []
thread = threading.Thread(target=lambda: made.append(Broker(sys.argv[1]).start()))
thread.start(); thread.join()
print(made[0].process.pid, made[0].process.poll(), flush=True)
time.sleep(60)
"""


def has_ended(pid: str) -> bool:
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_no_broker_outlives_its_parent_and_sigterm_ends_it_well(tmp_path: Path) -> None:
    """The thread that starts it may end; its process may be killed."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, alive = parent.stdout.readline().split()
        assert alive == "None"
        parent.kill()
    wait_until(lambda: has_ended(pid))
    command = [sys.executable, "-m", "qafel", "broker", "--dir", str(tmp_path / "b"), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += parent.stdout.readline()
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(240) == 0
    child = json.loads(text)["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_broker_that_a_thread_started_outlives_the_thread(tmp_path: Path) -> None:
    broker = Broker(tmp_path, max_store="1G")
    thread = threading.Thread(target=broker.start)
    thread.start()
    thread.join()
    wait_until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
    with socket.create_connection((broker.host, broker.port), 240) as connection:
        assert connection.recv(4) == b"INFO"
    assert broker.process is not None
    assert broker.process.poll() is None
    broker.kill()
    assert broker.start().process is not None
    broker.stop()
