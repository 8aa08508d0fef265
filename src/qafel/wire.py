"""Frames: the messages between server and clients, as bytes.

    frame = "QF" · format (1 byte) · checksum (8 bytes) · body

The body is one msgpack array: the kind of message, then its fields. The checksum (xxh3, little-endian) covers
format and body, so a flipped bit anywhere is an error before anything is applied. An Update or Increment
costs at most 64 bytes over its payload.

What a payload means (size, quantizers, seed) is the job's business; every frame carries the job's id, a
fingerprint of all of it, and ``Welcome`` carries the job itself. ``decode`` gives a message or FrameError,
never anything else, and looks at the length before it allocates: what it allocates is never more than what it
was given.

The messages, and who sends them:

    Update      client → server   Q_c(y_P − y_0), and the version the client started from
    Increment   server → all      Q_s(x − x̂), and the version and digest of the x̂ it leads to
    Snapshot    server → client   x̂ in full precision
    CatchUp     client → server   "I am at this version": answered by increments or a snapshot
    Welcome     server → client   the job: what a newcomer needs before its first snapshot
"""

from typing import Annotated, TypeVar

import msgspec
import xxhash

from qafel.errors import FrameError

MAGIC = b"QF"
FORMAT = 1
HEADER = len(MAGIC) + 1 + 8
MAX_OVERHEAD = 64
"""No Update or Increment is longer than its payload and this."""

MAX_FRAME = 1 << 33
"""What ``decode`` takes unless told otherwise; server and client know their job and tell it less."""

Word = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class Update(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """A client's quantized delta. ``(client, task)`` is what makes an upload idempotent."""

    job: Word
    client: Word
    task: Count
    version: Count
    payload: bytes


class Increment(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """The step of x̂ to ``version``; ``replaces`` it (direct quantization) or is added to it."""

    job: Word
    version: Count
    digest: Word
    replaces: bool
    payload: bytes


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag=3, forbid_unknown_fields=True):
    """The hidden state itself, as float32."""

    job: Word
    version: Count
    digest: Word
    payload: bytes


class CatchUp(msgspec.Struct, frozen=True, array_like=True, tag=4, forbid_unknown_fields=True):
    """A client's version and digest of x̂; both 0 and ``fresh`` when it has none to be trusted."""

    job: Word
    client: Word
    version: Count
    digest: Word
    fresh: bool


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=5, forbid_unknown_fields=True):
    """The job, in the bytes its id is a fingerprint of."""

    job: Word
    terms: bytes


class Rejected(msgspec.Struct, frozen=True):
    """What a receiver says of a frame it did not take; nothing changed. Whose it was, if that is known."""

    reason: str
    detail: str
    client: int | None = None
    task: int | None = None


Message = Update | Increment | Snapshot | CatchUp | Welcome

_encoder = msgspec.msgpack.Encoder()
T = TypeVar("T")


_decoder: "msgspec.msgpack.Decoder[Message]" = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The frame of a message."""
    return seal(MAGIC, FORMAT, _encoder.encode(message))


def decode(frame: bytes, limit: int = MAX_FRAME) -> Message:
    """The message in a frame of at most ``limit`` bytes."""
    if len(frame) > limit:
        raise FrameError(f"a frame of {len(frame)} bytes, where at most {limit} make sense")
    return unpack(unseal(MAGIC, FORMAT, frame), _decoder)


def unpack(body: bytes | memoryview, decoder: "msgspec.msgpack.Decoder[T]") -> T:
    """What a msgpack body says, or FrameError; a type's own complaints about its values included."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not what was expected here: {error}") from error


def seal(magic: bytes, version: int, body: bytes) -> bytes:
    """Magic, format version and checksum before a body; saved state uses the same envelope."""
    format_byte = bytes([version])
    checksum = xxhash.xxh3_64(format_byte)
    checksum.update(body)
    return magic + format_byte + checksum.intdigest().to_bytes(8, "little") + body


def unseal(magic: bytes, version: int, data: bytes) -> memoryview:
    """The body in an envelope, or FrameError."""
    if len(data) < HEADER or data[: len(magic)] != magic:
        raise FrameError(f"does not start with {magic.decode()!r} and a header of {HEADER} bytes")
    if data[2] != version:
        raise FrameError(f"format {data[2]}, and this qafel reads format {version}")
    body = memoryview(data)[HEADER:]
    checksum = xxhash.xxh3_64(data[2:3])
    checksum.update(body)
    if checksum.digest()[::-1] != data[3:HEADER]:
        raise FrameError("the checksum does not match: damaged on the way")
    return body


def fingerprint(data: bytes | memoryview, seed: int = 0) -> int:
    """The 64-bit fingerprint used for job ids and digests."""
    return xxhash.xxh3_64_intdigest(data, seed & ((1 << 64) - 1))
