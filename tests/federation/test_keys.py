"""What a key opens, what it does not, and who hears it; with nats-py against the real broker."""

import asyncio
import contextlib
import json
import ssl
from pathlib import Path

import pytest

from keyed import Middle, T, U, last, party, record_types
from parties import until
from qafel.errors import ConfigError
from qafel.federation.broker import Broker
from qafel.federation.keys import certificates, read
from qafel.federation.subjects import Subjects, inbox


@pytest.mark.parametrize("mode", ["downgrade", "plain", "other certificate", "other host"])
def test_a_man_in_the_middle_gets_no_byte_of_the_protocol(
    mode: str, keyed_broker: Broker, folder: Path, tmp_path: Path
) -> None:
    async def attack() -> bytes:
        tls = None
        if mode == "other certificate":
            certificates.ensure(tmp_path, ["127.0.0.1"], 1.0)
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(tmp_path / "broker" / "broker.pem", tmp_path / "broker" / "broker-key.pem")
        middle = Middle("pass" if mode == "other host" else mode, keyed_broker, tls)
        async with middle.listening("127.0.0.2" if mode == "other host" else "127.0.0.1") as url:
            with pytest.raises((OSError, asyncio.TimeoutError)):
                async with party(url, folder / "t" / "server.key", connect_timeout=1):
                    pass
            await middle.closed()
        return bytes(middle.sent)

    sent = asyncio.run(attack())
    for secret in (b"CONNECT", b"PING", b"jwt", b"sig", read(folder / "t" / "server.key").jwt.encode()):
        assert secret not in sent
    if mode == "other certificate":
        assert sent == b""  # what the other end decrypts
    elif (
        mode == "other host"
    ):  # the broker's own certificate, so the handshake's end and an alert are encrypted
        assert len(sent) < 1500
    else:
        assert record_types(sent) <= {21, 22}


def test_nothing_is_sent_in_plain_text_when_a_reconnection_is_closed_in_the_middle(
    keyed_broker: Broker, folder: Path
) -> None:
    async def attack() -> tuple[bytes, bytes]:
        middle = Middle("pass", keyed_broker)
        async with middle.listening() as url:
            options = {"allow_reconnect": True, "reconnect_time_wait": 0.05, "connect_timeout": 1}
            async with party(url, folder / "t" / "client-0.key", **options) as one:
                await one.publish(T.upload(0), b"before")
                await one.flush()
                good, middle.mode, middle.sent = bytes(middle.sent), "silent", bytearray()
                await middle.cut()
                await until(lambda: len(middle.sent) > 0)
                await one.publish(T.upload(0), b"a secret update")
                with contextlib.suppress(Exception):
                    await one.flush(timeout=0.1)
            await middle.closed()
        return good, bytes(middle.sent)

    good, bad = asyncio.run(attack())
    assert 23 in record_types(good)
    assert record_types(bad) <= {21, 22}
    assert b"PING" not in bad
    assert b"a secret update" not in bad


FORBIDDEN_PUBLISH = [
    T.upload(1),
    T.piece(1),
    T.ask(1),
    T.answer(0),
    T.answer(1),
    T.entry("operator"),
    T.entry("server"),
    T.increment(1),
    T.live,
    T.status,
    T.public("welcome"),
    T.private("leader"),
    T.object("snapshot"),
    U.upload(0),
    "_INBOX_1.x",
    "_R_.x",
    f"$JS.API.STREAM.DELETE.{T.log}",
    f"$JS.API.STREAM.INFO.{T.log}",
    "$JS.API.STREAM.LIST",
    f"$JS.API.STREAM.MSG.GET.{T.log}",
    f"$JS.API.DIRECT.GET.{T.log}",
    f"$JS.API.DIRECT.GET.{T.keys}",
    f"$JS.API.DIRECT.GET.{T.keys}.{T.private('leader')}",
    f"$JS.API.DIRECT.GET.{T.keys}.{T.report('status')}",
    f"$JS.API.CONSUMER.CREATE.{T.log}.mine",
    f"$JS.ACK.{T.asks}.x",
    "anything.else",
    "$SYS.REQ.CLAIMS.UPDATE",
]
FORBIDDEN_SUBSCRIBE = [
    T.upload(),
    T.ask(),
    T.answer(),
    T.answer(1),
    T.increment(),
    T.public(),
    T.status,
    "_INBOX_1.>",
    "_INBOX.>",
    U.live,
    ">",
    "$SYS.>",
]


def test_a_clients_key_opens_its_own_subjects_and_nothing_else(keyed_broker: Broker, folder: Path) -> None:
    async def attempt() -> None:
        async with party(keyed_broker.url, folder / "t" / "client-0.key") as one:
            for subject in FORBIDDEN_PUBLISH:
                await one.publish(subject, b"x")
            for subject in FORBIDDEN_SUBSCRIBE:
                await one.subscribe(subject)
            await one.flush()
            await until(lambda: len(one.heard) >= len(FORBIDDEN_PUBLISH) + len(FORBIDDEN_SUBSCRIBE))
            for kind, subjects in (("publish", FORBIDDEN_PUBLISH), ("subscription", FORBIDDEN_SUBSCRIBE)):
                for subject in subjects:
                    wanted = f'permissions violation for {kind} to "{subject}"'.lower()
                    assert any(wanted in line.lower() for line in one.heard), subject
            del one.heard[:]
            feeds = [await one.subscribe(subject) for subject in T.client_feeds(0)]
            for subject in T.client_services(0)[:3]:
                assert b"seq" in (await one.request(subject, b"x")).data
            get = f"$JS.API.DIRECT.GET.{T.increments}"
            assert (await one.request(get, b'{"seq": 1}')).data == b"x"
            get = f"$JS.API.DIRECT.GET.{T.keys}.{T.public('welcome')}"
            assert (await one.request(get, b"")).data == b"x"
            assert (await one.request(f"$JS.API.DIRECT.GET.{T.objects}", b'{"seq": 1}')).data == b"x"
            async with party(keyed_broker.url, folder / "t" / "server.key") as server:
                await server.request(T.increment(1), b"new")
                await server.publish(T.answer(1), b"for another")
                await server.publish(T.answer(0), b"for 0")
            assert [(await feed.next_msg(240)).data for feed in feeds] == [b"new", b"for 0"]
            assert one.heard == []

    asyncio.run(attempt())


def test_no_answer_reaches_another_client_or_a_stream_through_a_reply_subject(
    keyed_broker: Broker, folder: Path
) -> None:
    async def attack() -> None:
        async with (
            party(keyed_broker.url, folder / "t" / "client-0.key") as one,
            party(keyed_broker.url, folder / "t" / "client-1.key") as other,
            party(keyed_broker.url, folder / "t" / "server.key") as server,
        ):
            feeds = [await other.subscribe(subject) for subject in (*T.client_feeds(1), f"{inbox(1)}.>")]
            for subject in (T.live, T.status, f"{inbox('server')}.>"):
                feeds.append(await server.subscribe(subject))
            await asyncio.gather(other.flush(), server.flush())
            quiet = (T.increments, T.keys, T.objects)
            before = [await last(server, stream) for stream in quiet]
            await server.flush()

            def heard() -> list[tuple[str, int]]:
                return [(feed.subject, feed.delivered) for feed in feeds]

            quietly = heard()
            targets = [T.live, T.answer(1), f"{inbox(1)}.x", f"{inbox('server')}.x", T.status, T.increment(1)]
            targets += [T.private("leader"), T.public("welcome"), T.object("snapshot"), T.upload(1)]
            targets += [f"$JS.API.STREAM.PURGE.{T.increments}", T.entry("operator")]
            services = [
                subject.replace(f"{T.public()}", T.public("welcome")).replace(">", "x.0")
                for subject in T.client_services(0)
            ]
            noise = {to: b'{"seq": 1}' if to.endswith(T.increments) else b"noise" for to in services}
            for target in targets:
                for to, data in noise.items():
                    await one.publish(to, data, reply=target)
                    await one.publish(to, data, headers={"Nats-Trace-Dest": target})
            for to, data in noise.items():  # a service answers in order: this is its last answer
                await one.request(to, data)
            await asyncio.gather(other.flush(), server.flush())
            assert heard() == quietly
            assert [await last(server, stream) for stream in quiet] == before
            stored = [await last(server, stream) for stream in (T.log, T.log)]
            for seq in range(1, stored[0] + 1):
                got = await server.request(f"$JS.API.DIRECT.GET.{T.log}", json.dumps({"seq": seq}).encode())
                assert got.headers["Nats-Subject"] == T.upload(0)

    asyncio.run(attack())


def test_two_federations_share_a_broker_and_nothing_else(keyed_broker: Broker, folder: Path) -> None:
    async def attempt() -> None:
        async with (
            party(keyed_broker.url, folder / "u" / "client-0.key") as one,
            party(keyed_broker.url, folder / "u" / "server.key") as server,
            party(keyed_broker.url, folder / "t" / "server.key") as theirs,
        ):
            before = await last(theirs, T.log)
            for nc in (one, server):
                for subject in (T.upload(0), T.live, T.answer(0), f"$JS.API.STREAM.INFO.{T.log}"):
                    await nc.publish(subject, b"x")
                    await nc.subscribe(subject)
                await nc.flush()
                await until(lambda nc=nc: len(nc.heard) == 8)  # type: ignore[misc]
            info = json.loads((await server.request("$JS.API.INFO", b"")).data)
            assert info["streams"] == 0
            assert await last(theirs, T.log) == before

    asyncio.run(attempt())


def test_an_observer_reads_what_is_public_and_an_operator_decides(keyed_broker: Broker, folder: Path) -> None:
    async def attempt() -> None:
        async with party(keyed_broker.url, folder / "t" / "observer.key") as one:
            get = f"$JS.API.DIRECT.GET.{T.keys}"
            assert (await one.request(f"{get}.{T.public('welcome')}", b"")).data == b"x"
            for subject in (T.entry("operator"), f"{get}.{T.private('leader')}", T.status, T.upload(0)):
                await one.publish(subject, b"")
            await one.flush()
            await until(lambda: len(one.heard) == 4)
        async with party(keyed_broker.url, folder / "t" / "operator.key") as one:
            await one.publish(T.entry("server"), b"")
            await one.flush()
            await until(lambda: len(one.heard) == 1)

    asyncio.run(attempt())


@pytest.mark.parametrize("role", ["client", "sever"])
def test_a_role_without_a_number_or_a_name_gets_no_permissions(role: str) -> None:
    with pytest.raises(ConfigError, match="unknown role"):
        Subjects("t").permissions(role)
