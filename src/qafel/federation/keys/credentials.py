"""Key files, and the options of a connection that follow from them.

With ``tls://`` nothing is sent before the broker's certificate has been verified: the handshake comes first,
not after a greeting in plain text that someone in the middle can change. The broker's configuration says
``handshake_first``; a broker of your own needs it too.
"""

import base64
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any, Literal

import msgspec

from qafel.errors import ConfigError
from qafel.extras import require
from qafel.federation.keys import jwt

FORMAT = 2
"""The version of key files, the register and broker.json; 1 was a folder with users.json."""
Role = Literal["server", "operator", "observer", "client", "system"]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What one party of a federation needs to connect; as a file, it is a secret of this party."""

    format: int = FORMAT
    name: str
    """The federation."""
    role: Role
    client: int | None = None
    jwt: str
    seed: str
    ca: str
    """The certificate of the CA that signed the broker's."""
    certificate: str | None = None
    """With mutual TLS, the certificate of this party."""
    certificate_key: str | None = None

    def __repr__(self) -> str:
        who = self.role if self.client is None else f"client {self.client}"
        return f"<key of {who} of {self.name!r}>"


def read(path: Path | str) -> Key:
    """Read a key file, such as ``client-7.key``."""
    require("a key", "federation")
    path = Path(path)
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder, and a key is a file such as client-7.key; qafel keys new makes it"
        ) from None
    except FileNotFoundError:
        raise ConfigError(f"there is no key {path}; qafel keys new makes one for every party") from None
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror or error}") from error
    check_format(data, path)
    try:
        key = msgspec.json.decode(data, type=Key)
        whole = (key.client is not None) == (key.role == "client") and claims(key.jwt)[
            "sub"
        ] == jwt.public_key(key.seed)
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise ConfigError(f"the key {path} is damaged; make it anew with qafel keys rotate")
    return key


def check_folder(folder: Path) -> None:
    """Raise ConfigError if a folder holds keys of format 1."""
    if (folder / "users.json").exists():
        raise ConfigError(
            f"{folder} holds keys of an old format (users.json); make new ones in an empty folder with "
            "qafel keys new"
        )


def check_format(data: bytes, path: Path) -> None:
    """Raise ConfigError if a file is not JSON, or of another version."""
    try:
        content = msgspec.json.decode(data)
        version = content.get("format", 0)
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged: it is not a file of qafel keys") from error
    if version != FORMAT:
        raise ConfigError(
            f"{path} has format {version} and this version of qafel reads {FORMAT}; "
            "make new keys in an empty folder with qafel keys new"
        )


def claims(token: str) -> dict[str, Any]:
    """The claims in a token, whose signature is not verified."""
    middle = token.split(".")[1] if token.count(".") == 2 else ""
    content = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    if not isinstance(content, dict):
        raise ValueError("a token holds an object")
    return content


def credentials(url: str, key: Key | None) -> dict[str, Any]:
    """The options of ``nats.connect`` for this address, or several with commas, and this key."""
    secure = is_secure(url)
    if key is not None and key.ca and not secure:
        raise ConfigError(f"a key with a CA needs a broker's address that starts with tls://, got {url!r}")
    options: dict[str, Any] = {}
    if secure:
        options |= {"tls": _context(key), "tls_handshake_first": True}
    if key is not None:
        seed, token = key.seed, key.jwt

        def signature(nonce: str) -> bytes:
            return base64.b64encode(jwt.sign(seed, nonce.encode()))

        options |= {"user_jwt_cb": lambda: bytearray(token.encode()), "signature_cb": signature}
    return options


def is_secure(url: str) -> bool:
    """Whether all of these addresses are ``tls://``; ConfigError if only some are, or another scheme."""
    schemes = {one.strip().partition("://")[0] for one in url.split(",")}
    if len(schemes) != 1 or not schemes <= {"nats", "tls"}:
        raise ConfigError(f"broker addresses must all start with tls://, or all with nats://, got {url!r}")
    return schemes == {"tls"}


def _context(key: Key | None) -> ssl.SSLContext:
    """A context that verifies the broker's certificate and its host name."""
    if key is None or not key.ca:
        return ssl.create_default_context()
    try:
        context = ssl.create_default_context(cadata=key.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if key.certificate and key.certificate_key:
            with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # readable by its owner only
                file.write(f"{key.certificate}\n{key.certificate_key}".encode())
                file.flush()
                context.load_cert_chain(file.name)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{key!r} is damaged: its certificates cannot be read; make it anew with qafel keys rotate"
        ) from error
    return context
