"""Frames: the messages between server and clients, as bytes.

    frame = "QF" · format (1 byte) · checksum (8 bytes) · body

The body is one msgpack array: the kind of message, then its fields. The checksum (xxh3, little-endian) covers
format and body, so a flipped bit anywhere is an error before anything is applied. An Update or Increment
costs at most 64 bytes over its payload.

What a payload means (size, quantizers, seed) is defined by the job. Every frame carries the job's id, which
is a fingerprint of the job. ``decode`` returns a message or raises FrameError; it checks the length before it
allocates, and never allocates more than it was given.

    Update      client → server   Q_c(y_P − y_0), and the version the client started from
    Increment   server → all      Q_s(x − x̂), and the version and digest of the x̂ it leads to
    Snapshot    server → client   x̂ in full precision

``Sealed`` is the base of everything else that is stored or sent: the same envelope with another magic.
"""

from typing import Annotated, Any, ClassVar, Self, TypeVar

import msgspec
import xxhash

from qafel.errors import FormatError, FrameError

MAGIC = b"QF"
FORMAT = 2
"""Version of the frames and of the quantizers' payloads in them."""
HEADER = len(MAGIC) + 1 + 8
MAX_OVERHEAD = 64
"""An Update or Increment is at most this much longer than its payload."""

MAX_FRAME = 1 << 33
"""The default length limit of ``decode``; server and client pass the limit that follows from their job."""

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


class Request(msgspec.Struct, frozen=True, array_like=True, tag=4, forbid_unknown_fields=True):
    """A client asks for what it misses: it holds ``version`` of x̂ with this digest; None: it holds none."""

    job: Word
    client: Word
    version: Count | None
    digest: Word


class Rejected(msgspec.Struct, frozen=True):
    """A frame was refused and changed nothing; ``client`` and ``task`` are None where they are unknown."""

    reason: str
    detail: str
    client: int | None = None
    task: int | None = None


Message = Update | Increment | Snapshot | Request

_encoder = msgspec.msgpack.Encoder()
_decoder: "msgspec.msgpack.Decoder[Message]" = msgspec.msgpack.Decoder(Message)
T = TypeVar("T")


class Sealed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of structs that are stored or sent in an envelope: magic, format version, checksum, msgpack."""

    MAGIC: ClassVar[bytes]
    FORMAT: ClassVar[int] = 1

    def to_bytes(self) -> bytes:
        """The struct in its envelope."""
        return seal(self.MAGIC, self.FORMAT, _encoder.encode(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of ``to_bytes``, or FrameError (FormatError where only the version differs)."""
        return unpack(unseal(cls.MAGIC, cls.FORMAT, data), decoder(cls))


_decoders: dict[type, "msgspec.msgpack.Decoder[Any]"] = {}


def decoder(kind: type[T]) -> "msgspec.msgpack.Decoder[T]":
    """The msgpack decoder of a type, made once."""
    if kind not in _decoders:
        _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return _decoders[kind]


def encode(message: Message) -> bytes:
    """The frame of a message."""
    return seal(MAGIC, FORMAT, _encoder.encode(message))


def decode(frame: bytes, limit: int = MAX_FRAME) -> Message:
    """The message in a frame of at most ``limit`` bytes, or FrameError."""
    if len(frame) > limit:
        raise FrameError(f"frame has {len(frame)} bytes; the limit is {limit}")
    return unpack(unseal(MAGIC, FORMAT, frame), _decoder)


def request_bytes(job: int, client: int, version: int) -> int:
    """The length of a Request; digests below 2³², one in four billion, would make it shorter."""
    return len(encode(Request(job, client, version, (1 << 64) - 1)))


def unpack(body: bytes | memoryview, decoder: "msgspec.msgpack.Decoder[T]") -> T:
    """Decode a msgpack body; every decoding or validation error becomes FrameError."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"malformed body: {error}") from error


def seal(magic: bytes, version: int, body: bytes) -> bytes:
    """Prefix a body with magic, format version and checksum."""
    format_byte = bytes([version])
    checksum = xxhash.xxh3_64(format_byte)
    checksum.update(body)
    return magic + format_byte + checksum.intdigest().to_bytes(8, "little") + body


def unseal(magic: bytes, version: int, data: bytes) -> memoryview:
    """The body in an envelope; FrameError if it is damaged, FormatError if its version is another."""
    if len(data) < HEADER or data[: len(magic)] != magic:
        raise FrameError(f"does not start with {magic.decode()!r} and a header of {HEADER} bytes")
    body = memoryview(data)[HEADER:]
    checksum = xxhash.xxh3_64(data[2:3])
    checksum.update(body)
    if checksum.digest()[::-1] != data[3:HEADER]:
        raise FrameError("checksum mismatch: the bytes were damaged")
    if data[2] != version:
        raise FormatError(f"{magic.decode()!r} has format {data[2]}; this version of qafel reads {version}")
    return body


def fingerprint(data: bytes | memoryview, seed: int = 0) -> int:
    """The 64-bit fingerprint used for job ids and digests."""
    return xxhash.xxh3_64_intdigest(data, seed & ((1 << 64) - 1))
