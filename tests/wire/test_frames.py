"""Frames: strict decoding, and no bytes that do harm. Their committed bytes are in ``tests/golden``."""

import contextlib
import random
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qafel import (
    Advanced,
    Client,
    Drifted,
    FormatError,
    FrameError,
    Ignored,
    Job,
    Missed,
    Rejected,
    Server,
    StateError,
    quantizer,
    wire,
)
from qafel.coding.rice import decode_indices, max_index_bytes
from qafel.hidden import HiddenState
from qafel.wire import Increment, Request, Snapshot, Update
from specs import SPECS, heavy_tailed

EXAMPLES: list[wire.Message] = [
    Update(1, 2, 3, 4, b"abc"),
    Update(2**64 - 1, 2**64 - 1, 2**40 - 1, 2**40 - 1, b""),
    Increment(1, 2, 3, False, b"abc"),
    Increment(2**64 - 1, 2**40 - 1, 2**64 - 1, True, b"\x00" * 300),
    Snapshot(1, 2, 3, b"abcd"),
    Request(1, 2, 3, 4),
    Request(2**64 - 1, 2**64 - 1, None, 0),
]

words = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**40 - 1)
messages = st.one_of(
    st.builds(Update, words, words, counts, counts, st.binary(max_size=100)),
    st.builds(Increment, words, counts, words, st.booleans(), st.binary(max_size=100)),
    st.builds(Snapshot, words, counts, words, st.binary(max_size=100)),
    st.builds(Request, words, words, st.none() | counts, words),
)


@given(messages)
def test_every_message_survives_its_frame(message: wire.Message) -> None:
    frame = wire.encode(message)
    assert wire.decode(frame) == message
    with pytest.raises(FrameError):
        wire.decode(frame + b"\0")
    with pytest.raises(FrameError):
        wire.decode(frame[:-1])
    with pytest.raises(FrameError, match="the limit is"):
        wire.decode(frame, limit=len(frame) - 1)


@pytest.mark.parametrize("payload", [b"", b"x", b"x" * 255, b"x" * 256, b"x" * 65536])
def test_an_update_or_increment_costs_at_most_64_bytes_over_its_payload(payload: bytes) -> None:
    big, count = 2**64 - 1, 2**40 - 1
    for message in (Update(big, big, count, count, payload), Increment(big, count, big, True, payload)):
        assert len(wire.encode(message)) - len(payload) <= wire.MAX_OVERHEAD <= 64


@pytest.mark.parametrize("size", [1, 63, 64, 16_383, 16_384])
def test_the_length_of_a_snapshot_is_known_without_making_it(size: int) -> None:
    for version in (0, 127, 128, 65536, 2**33):
        state = HiddenState(np.zeros(size, np.float32), version)
        assert state.snapshot_bytes(7) == len(wire.encode(state.snapshot(7)))


def resealed(frame: bytes, body: bytes) -> bytes:
    """A frame of the same kind whose checksum is right for ``body``."""
    return wire.seal(frame[:2], frame[2], body)


def mutated(rng: random.Random, good: bytes) -> bytes:
    """A byte string that is random, or nearly ``good``."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(2 * len(good) + 20))
    data = bytearray(good)
    if kind == 1:
        del data[rng.randrange(len(data) + 1) :]
    elif kind == 2:
        data += rng.randbytes(rng.randrange(1, 20))
    elif kind == 3 and data:
        at = rng.randrange(len(data))
        data[at : at + 4] = rng.randbytes(4)
    elif data:
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


CASES = 20_000
TRACED = 2_000
"""Cases whose memory is watched, which makes them thrice as slow."""


@pytest.mark.slow
def test_twenty_thousand_byte_strings_are_a_message_or_a_frame_error() -> None:
    rng = random.Random(0)
    frames = [wire.encode(message) for message in EXAMPLES]
    tracemalloc.start()
    taken = 0
    for k in range(CASES):
        frame = frames[k % len(frames)]
        data = mutated(rng, frame) if k % 2 else resealed(frame, mutated(rng, frame[wire.HEADER :]))
        try:
            wire.decode(data)
            taken += 1
        except FrameError:
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1000 < taken < CASES / 2
    assert peak < 1 << 20


ALIKE = (
    "dither:bits=1",
    "dither:nmse=0.1",
    "deadzone:nmse=0.1",
    "rotated:bits=3",
    "eden:1",
    "qsgd:2",
    "qsgd:5,bucket=7",
    "qsgd:7,bucket=64,norm=max",
    "qsgd:levels=4,bucket=113",
    "topk:0.9",
    "contract:randk:0.5,scaled",
    "qsgd:3,bucket=100",
    "qsgd:6,norm=max",
    "affine:8",
    "topk:5",
    "randk:20,scaled",
)
"""Decoded by the same code as another."""


@pytest.mark.slow
@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in ALIKE])
def test_twenty_thousand_payloads_are_a_finite_vector_or_a_frame_error(spec: str) -> None:
    q, size = quantizer(spec), 40
    rng, good = random.Random(1), q.encode(heavy_tailed(size), 1)
    q.decode(good, size)
    tracemalloc.start()
    refused = peak = 0
    for k in range(CASES):
        if k == TRACED:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        try:
            decoded = q.decode(mutated(rng, good), size)
        except FrameError:
            refused += 1
            continue
        assert decoded.size == size
        assert np.isfinite(decoded).all()
    assert refused > CASES / 10
    assert 0 < peak < 1 << 22


@pytest.mark.slow
def test_twenty_thousand_codings_of_positions() -> None:
    from qafel.coding.rice import encode_indices

    rng, size = random.Random(2), 300
    for _ in range(CASES):
        count = rng.randrange(40)
        good = encode_indices(np.array(sorted(rng.sample(range(size), count)), np.int64), size)
        try:
            indices = decode_indices(mutated(rng, good), size, count)
        except FrameError:
            continue
        assert len(indices) == count
        assert (np.diff(indices) > 0).all()
        assert count == 0 or 0 <= indices[0] <= indices[-1] < size
    assert max_index_bytes(size, size) == max_index_bytes(size, size // 2) == 39
    assert max_index_bytes(size, 3) == 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["server", "client", "job"])
def test_twenty_thousand_damaged_states_and_jobs(kind: str) -> None:
    job = Job(size=8, buffer_size=2)
    x0 = np.zeros(8, np.float32)
    server, client = Server(job, x0), Client(job, x0, client=0)
    server.receive(client.train(lambda x, task: x + 1))
    loaders = {
        "server": (server.state(), Server.from_state),
        "client": (client.state(), Client.from_state),
    }
    rng = random.Random(3)
    tracemalloc.start()
    for k in range(CASES):
        if kind == "job":
            try:
                Job.from_bytes(mutated(rng, job.to_bytes()))
            except FrameError:
                pass
            continue
        good, load = loaders[kind]
        data = mutated(rng, good) if k % 5 == 0 else resealed(good, mutated(rng, good[wire.HEADER :]))
        try:
            load(data)  # type: ignore[operator]
        except (StateError, FrameError):
            pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.slow
def test_whatever_a_client_sends_the_server_answers_with_events() -> None:
    job = Job(size=8, buffer_size=2, client_quantizer="qsgd:4")
    x0 = np.zeros(8, np.float32)
    server, client = Server(job, x0), Client(job, x0, client=0)
    rng, update = random.Random(4), client.train(lambda x, task: x + 1)
    reasons = set()
    tracemalloc.start()
    for k in range(CASES):
        good = update
        data = mutated(rng, good) if k % 3 == 0 else resealed(good, mutated(rng, good[wire.HEADER :]))
        for event in server.receive(data):
            if isinstance(event, Rejected):
                reasons.add(event.reason)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {"malformed", "wrong_job", "duplicate", "bad_payload", "unknown_version"} <= reasons
    assert peak < 1 << 22  # of which most is who was counted


@pytest.mark.slow
def test_whatever_a_server_sends_the_client_answers_with_an_event() -> None:
    job = Job(size=8, buffer_size=1, server_quantizer="qsgd:4,bucket=256,norm=max")
    x0 = np.zeros(8, np.float32)
    server, client = Server(job, x0), Client(job, x0, client=0)
    events = server.receive(client.train(lambda x, task: x + 1))
    goods = [events[1].frame, wire.encode(server.hidden.snapshot(job.id))]  # type: ignore[union-attr]
    rng, seen = random.Random(5), set()
    saved = client.state()
    tracemalloc.start()
    for k in range(CASES):
        good = goods[k % 2]
        data = mutated(rng, good) if k % 4 == 0 else resealed(good, mutated(rng, good[wire.HEADER :]))
        seen.add(type(client.apply(data)))
        if k % 10 == 0:
            client = Client.from_state(saved)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == {Advanced, Drifted, Ignored, Missed, Rejected}
    assert peak < 1 << 20


def test_frames_longer_than_the_job_allows_are_not_even_read() -> None:
    job = Job(size=100, client_quantizer="qsgd:4", server_quantizer="qsgd:4,bucket=64,norm=max")
    server, client = Server(job, np.zeros(100, np.float32)), Client(job, np.zeros(100, np.float32), client=0)
    (refused,) = server.receive(wire.encode(Update(job.id, 0, 0, 0, bytes(500))))
    assert isinstance(refused, Rejected)
    assert "the limit is" in refused.detail
    event = client.apply(wire.encode(Increment(job.id, 1, 0, False, bytes(500))))
    assert isinstance(event, Rejected)
    assert "the limit is" in event.detail


def test_a_format_that_is_not_ours_is_refused_by_its_number() -> None:
    frame = wire.seal(wire.MAGIC, wire.FORMAT + 1, b"whatever")
    with pytest.raises(FormatError, match=f"has format {wire.FORMAT + 1}; this version of qafel reads"):
        wire.decode(frame)


def test_a_small_job_from_a_peer_cannot_cost_much() -> None:
    hostile = [
        {"size": 8, "client_quantizer": "qsgd:4" + "," * 300_000},
        {"size": 8, "layout": [[["a", [2**63 - 1] * 60_000]]]},
        {"size": 8, "client_quantizer": "induced:bad+{x}"},
        {"size": (1 << 30) - 1},
    ]
    for terms in map(msgspec.msgpack.encode, hostile):
        tracemalloc.start()
        with contextlib.suppress(FrameError):
            Client(Job.from_bytes(terms), client=1)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10 * len(terms) + (1 << 20)


def test_a_declared_size_is_never_believed() -> None:
    """A payload that claims four gigabytes, in a frame of a few bytes, allocates nothing."""
    body = bytes([0x96, 1, 1, 2, 3, 4, 0xC6, 0xFF, 0xFF, 0xFF, 0xFF])
    for spec in SPECS:  # what is imported with the first vector is not what is measured
        quantizer(spec).decode(quantizer(spec).encode(heavy_tailed(40), 1), 40)
    tracemalloc.start()
    with pytest.raises(FrameError):
        wire.decode(wire.seal(wire.MAGIC, wire.FORMAT, body))
    for spec in [*SPECS, "induced:randk:1+qsgd:4"]:
        with pytest.raises(FrameError):
            quantizer(spec).decode(b"\xff" * 16, 10**8)
    head = (7).to_bytes(8, "little") + np.float32(1).tobytes()
    with pytest.raises(FrameError):
        quantizer("induced:randk:1+qsgd:4").decode(len(head).to_bytes(4, "little") + head, 10**8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 16
