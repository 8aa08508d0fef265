"""A key opens what its owner needs and nothing else; against the real broker, over TLS."""

import asyncio
import json
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parties import SIZE, ended, link, plan, publish, run, server, start, update
from qafel.errors import BrokerError, ConfigError
from qafel.federation import Broker, Subjects, join
from qafel.federation import nats as links
from qafel.federation.broker import configuration
from qafel.federation.keys import make
from qafel.federation.nats import retry
from qafel.federation.objects import Manifest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make(folder, "t", range(3))
    return folder


@pytest.fixture
def locked(tmp_path: Path, keys: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker", keys=keys) as broker:
        yield broker


async def refused(broker: Broker, keys: Path, who: int | str, action: Any) -> list[str]:
    """What the broker complains about when ``who`` does something."""
    heard: list[str] = []
    folder = keys / (f"client-{who}" if isinstance(who, int) else who)
    async with await link(
        broker.url, who, keys=folder, notice=lambda kind, detail: heard.append(detail)
    ) as one:
        await action(one)
        await one.nc.flush()
        await asyncio.sleep(0.1)
    return [line for line in heard if "permissions violation" in line.lower()]


def test_a_federation_runs_over_tls_with_keys(locked: Broker, keys: Path, tmp_path: Path) -> None:
    assert locked.url.startswith("tls://")
    serving = server(plan(uploads=12), locked.url, tmp_path / "server", keys=keys / "server")

    def train(x: Any, task: Any) -> Any:
        return -x / 10

    done = join("t", locked.url, client=1, train=train, keys=keys / "client-1")
    assert done.digest == ended(serving).summary.digest[16:]


NAMES = Subjects("t")
FORBIDDEN_PUBLISH = [
    NAMES.upload(1),
    NAMES.increment(1),
    NAMES.live,
    NAMES.public("snapshot"),
    NAMES.private("checkpoint"),
    NAMES.chunk(1, "object.x.0"),
    NAMES.ask(1),
    NAMES.status,
    "_INBOX_1.x",
    f"$JS.API.STREAM.DELETE.{NAMES.uploads}",
    f"$JS.API.STREAM.PURGE.{NAMES.uploads}",
    f"$JS.API.STREAM.INFO.{NAMES.uploads}",
    "$JS.API.STREAM.LIST",
    f"$JS.API.STREAM.MSG.GET.{NAMES.uploads}",
    f"$JS.API.DIRECT.GET.{NAMES.uploads}",
    f"$JS.API.DIRECT.GET.{NAMES.objects}",
    f"$JS.API.DIRECT.GET.{NAMES.objects}.{NAMES.private('checkpoint')}",
    f"$JS.API.CONSUMER.CREATE.{NAMES.uploads}.mine",
    "anything.else",
    "$SYS.REQ.SERVER.PING",
]
FORBIDDEN_SUBSCRIBE = [
    NAMES.upload(),
    NAMES.upload(0),
    NAMES.ask(),
    NAMES.increment(),
    NAMES.public(),
    "_INBOX_1.>",
    "_INBOX.>",
    ">",
    "$SYS.>",
]


def test_a_clients_key_publishes_under_its_own_id_and_reads_increments_and_snapshots_only(
    locked: Broker, keys: Path
) -> None:
    for subject in FORBIDDEN_PUBLISH:
        assert run(refused(locked, keys, 0, lambda one, s=subject: one.nc.publish(s, b"x"))), subject
    for subject in FORBIDDEN_SUBSCRIBE:
        assert run(refused(locked, keys, 0, lambda one, s=subject: one.nc.subscribe(s))), subject
    allowed = NAMES.client_permissions(0)
    for subject in allowed["publish"]:
        assert not run(
            refused(locked, keys, 0, lambda one, s=subject: one.nc.publish(s.replace(">", "x"), b""))
        ), subject
    for subject in allowed["subscribe"]:
        assert not run(refused(locked, keys, 0, lambda one, s=subject: one.nc.subscribe(s))), subject


def test_an_update_as_another_client_is_refused_by_the_broker_and_by_the_server(
    locked: Broker, keys: Path, tmp_path: Path
) -> None:
    chosen = plan(uploads=4)
    job = chosen.job(SIZE)
    serving = server(chosen, locked.url, tmp_path / "server", keys=keys / "server")

    async def attack() -> None:
        async with await link(locked.url, 0, keys=keys / "client-0") as one:
            while True:
                try:
                    await one.last(one.subjects.objects, one.subjects.public("snapshot"))
                    break
                except BrokerError:
                    await asyncio.sleep(0.05)
            with pytest.raises(BrokerError):
                await one.publish(one.subjects.upload(1), update(job, 1, 0), timeout=0.5)
            await one.publish(one.subjects.upload(0), update(job, 1, 0))
            for task in range(4):
                await one.publish(one.subjects.upload(0), update(job, 0, task))

    run(attack())
    summary = ended(serving).summary
    assert summary.rejected == {"wrong_sender": 1}
    assert summary.clients == 1


def test_no_answer_of_the_broker_can_be_sent_where_the_client_may_not_write(
    locked: Broker, keys: Path, tmp_path: Path
) -> None:
    """The broker answers wherever a request says, be it the increments or the key of the leader."""
    chosen = plan(uploads=8)
    job = chosen.job(SIZE)
    serving = server(chosen, locked.url, tmp_path / "server", keys=keys / "server")

    async def attack() -> None:
        async with (
            await link(locked.url, 0, keys=keys / "client-0") as one,
            await link(locked.url, "server", keys=keys / "server") as owner,
        ):
            while await owner.stream(owner.subjects.uploads) is None:
                await asyncio.sleep(0.05)
            for task in range(4):
                await one.publish(one.subjects.upload(0), update(job, 0, task))
            while (first := await one.get(one.subjects.increments, 1)) is None:
                await asyncio.sleep(0.05)
            before = await owner.stream(owner.subjects.increments)
            subjects = owner.subjects
            keyed = [subjects.private("leader"), subjects.private("checkpoint"), subjects.public("done")]
            for target in (first.subject, *keyed):
                await one.nc.publish(f"$JS.API.DIRECT.GET.{subjects.increments}", b'{"seq": 1}', reply=target)
                await one.nc.publish(subjects.upload(0), b"noise", reply=target)
                await one.nc.publish(subjects.ask(0), b"\x93\xa3ask\x00\x00", reply=target)
            await one.nc.flush()
            await asyncio.sleep(0.3)
            assert await owner.decided(subjects.objects, subjects.public("done")) is None
            now = await owner.stream(subjects.increments)
            assert before is not None
            assert now is not None
            assert now["state"]["last_seq"] == before["state"]["last_seq"]
            for task in range(4, 8):
                await one.publish(one.subjects.upload(0), update(job, 0, task))

    run(attack())
    assert ended(serving).summary.rejected == {"malformed": 4}


@pytest.mark.parametrize("headers", [b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"NATS/1.0\r\nStatus: 503\r\n\r\n"])
def test_headers_that_a_client_invents_stop_nobody(
    locked: Broker, keys: Path, tmp_path: Path, headers: bytes
) -> None:
    chosen = plan(uploads=4)
    job = chosen.job(SIZE)
    serving = server(chosen, locked.url, tmp_path / "server", keys=keys / "server")

    async def attack() -> None:
        async with await link(locked.url, 0, keys=keys / "client-0") as one:
            await retry(lambda: one.publish(one.subjects.upload(0), update(job, 0, 1)))
            manifest = Manifest("ab" * 16, 3000, 4096)
            piece = one.subjects.chunk(0, f"object.{manifest.digest}.0")
            for subject, data in (
                (piece, bytes(3000)),
                (one.subjects.upload(0), manifest.to_bytes()),
                (one.subjects.upload(0), update(job, 0, 0)),
                (one.subjects.ask(0), b"x"),
            ):
                head = f"HPUB {subject} {len(headers)} {len(headers) + len(data)}\r\n".encode()
                await one.nc._send_command(head + headers + data + b"\r\n")
                await one.nc._flush_pending()
            await one.nc.flush()
            for task in range(2, 5):
                await one.publish(one.subjects.upload(0), update(job, 0, task))

    run(attack())
    assert ended(serving).summary.uploads == 4


def test_no_key_an_unknown_key_a_wrong_ca_and_an_expired_certificate_get_a_clear_sentence(
    locked: Broker, keys: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    make(other, "t", range(1))
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    (mixed / "seed.nk").write_bytes((other / "client-0" / "seed.nk").read_bytes())
    with pytest.raises(BrokerError, match=r"was not signed by the CA in ca\.pem"):
        run(link(locked.url, 0, keys=other / "client-0"))
    with pytest.raises(BrokerError, match="does not know this key"):
        run(link(locked.url, 0, keys=mixed))
    with pytest.raises(BrokerError, match=r"is not of the CA|certificate"):
        run(link(locked.url, 0))
    with pytest.raises(ConfigError, match=r"has no seed\.nk"):
        run(link(locked.url, 0, keys=tmp_path))
    with pytest.raises(ConfigError, match="must start with tls://"):
        run(link(locked.url.replace("tls", "nats"), 0, keys=keys / "client-0"))
    expired = tmp_path / "expired"
    make(expired, "t", range(1), days=-0.5)
    with (
        Broker(tmp_path / "old", keys=expired) as old,
        pytest.raises(BrokerError, match="has expired; renew it with qafel keys"),
    ):
        run(link(old.url, 0, keys=expired / "client-0"))


def test_a_refused_connection_is_closed_and_nothing_is_said_to_be_lost(
    locked: Broker, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "t", range(1))
    (tmp_path / "client-0" / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    opened: list[Any] = []
    heard: list[str] = []
    connection = links._connection

    def kept() -> Any:
        opened.append(connection())
        return opened[-1]

    monkeypatch.setattr(links, "_connection", kept)

    async def attempt() -> None:
        with pytest.raises(BrokerError, match="does not know this key"):
            await link(
                locked.url, 0, keys=tmp_path / "client-0", notice=lambda kind, detail: heard.append(kind)
            )
        assert [one.is_closed for one in opened] == [True]

    run(attempt())
    assert "disconnected" not in heard


def test_without_keys_a_broker_listens_on_loopback_only(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.168.1.4", "broker.example.org", "::"):
        with pytest.raises(ConfigError, match="a broker without keys listens on loopback only"):
            configuration(tmp_path, host=host)
    assert "127.0.0.1:4222" in configuration(tmp_path)
    assert "authorization" not in configuration(tmp_path)


def test_keys_are_for_their_owners_eyes_and_adding_a_client_keeps_the_others(tmp_path: Path) -> None:
    make(tmp_path, "t", range(1))
    seed = tmp_path / "client-0" / "seed.nk"
    before, ca = seed.read_bytes(), (tmp_path / "ca.pem").read_bytes()
    for path in (seed, tmp_path / "ca-key.pem", tmp_path / "broker-key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    made = make(tmp_path, "t", range(3))
    assert [path.name for path in made] == ["client-1", "client-2"]
    assert (seed.read_bytes(), (tmp_path / "ca.pem").read_bytes()) == (before, ca)
    assert before not in (tmp_path / "users.json").read_bytes()
    with pytest.raises(ConfigError, match="holds the keys of 't', not of 'u'"):
        make(tmp_path, "u", range(1))
    (tmp_path / "users.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="is damaged"):
        make(tmp_path, "t", range(1))


def test_the_broker_speaks_tls_only(locked: Broker, keys: Path) -> None:
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    assert context.verify_mode == ssl.CERT_REQUIRED

    async def plain() -> bytes:
        reader, writer = await asyncio.open_connection(locked.host, locked.port)
        info = await reader.readline()
        writer.write(b'CONNECT {"verbose":true}\r\nPING\r\n')
        answer = await reader.read(200)
        writer.close()
        assert json.loads(info[5:])["tls_required"]
        return answer

    assert b"PONG" not in run(plain())


def test_anonymous_publishers_of_an_open_broker_still_cannot_pretend(broker: Broker, tmp_path: Path) -> None:
    """Without keys the subject is all there is; an update on another client's subject is refused."""
    chosen = plan(uploads=4)
    job = chosen.job(SIZE)
    serving = server(chosen, broker.url, tmp_path / "server", x=start())
    odd = [(9, update(job, 1, 0))] + [(k, update(job, k, 0)) for k in range(4)]
    run(publish(broker.url, odd))
    assert ended(serving).summary.rejected == {"wrong_sender": 1}
