"""The JSON web tokens of NATS, and the NKeys that sign them.

An operator signs accounts, an account signs its users. A federation has one account with JetStream; its
server, operator and observer are users of it. Every client has an account of its own with one user, which
imports exactly the subjects of this client from the federation's account. A reply subject is a subject of the
client's own account, so no answer of the broker can reach another client.

The exports of a federation are public, that is, without activation tokens: an import counts only in an
account that the operator has signed, and the operator signs no other imports than these.
"""

import base64
import hashlib
import json
import os
import time
from typing import Any

from qafel.errors import ConfigError
from qafel.federation.subjects import Subjects, inbox
from qafel.lazy import Lazy

nkeys = Lazy("nkeys")
UNLIMITED = -1
CLIENT_CONNECTIONS = 4
"""Connections of one client: its process, a restarted one whose old connection still times out, and spare."""
CLIENT_SUBSCRIPTIONS = 32
SYSTEM_CALLS = ("$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.LIST")
"""What the operator asks of a running broker."""
_PREFIX = {"operator": 14 << 3, "account": 0, "user": 20 << 3}
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}


def new_seed(kind: str) -> str:
    """A new secret key of an ``operator``, ``account`` or ``user``."""
    return str(nkeys.encode_seed(os.urandom(32), _PREFIX[kind]).decode())


def public_key(seed: str) -> str:
    """The public half of a seed."""
    return str(_pair(seed).public_key.decode())


def sign(seed: str, data: bytes) -> bytes:
    """The signature of some bytes."""
    return bytes(_pair(seed).sign(data))


def encode(
    signer: str,
    subject: str,
    name: str,
    claims: dict[str, Any],
    *,
    issued: int | None = None,
    expires: int | None = None,
) -> str:
    """A signed token; ``signer`` is a seed, ``subject`` the public key that the claims are about."""
    body: dict[str, Any] = {
        "iat": int(time.time()) if issued is None else issued,
        "iss": public_key(signer),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": 2},
    }
    if expires is not None:
        body["exp"] = expires
    digest = hashlib.new("sha512_256", json.dumps(body).encode()).digest()
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_part(json.dumps(_HEADER).encode())}.{_part(json.dumps(body).encode())}"
    return f"{text}.{_part(sign(signer, text.encode()))}"


def operator(seed: str, system: str, issued: int) -> str:
    """The token of the operator, which names the system account."""
    claims = {"system_account": system, "type": "operator"}
    return encode(seed, public_key(seed), "qafel", claims, issued=issued)


def system_account(signer: str, account: str, issued: int, revocations: dict[str, int]) -> str:
    """The token of the system account, through which the operator changes accounts of a running broker."""
    claims = {"limits": _limits(exports=0, imports=0), "revocations": revocations, "type": "account"}
    return encode(signer, account, "system", claims, issued=issued)


def federation_account(
    signer: str,
    account: str,
    subjects: Subjects,
    issued: int,
    *,
    roles: dict[str, str],
    revocations: dict[str, int],
) -> str:
    """The token of a federation's account: JetStream, exports for its clients, and the key of each role."""
    exports = [
        *(
            {"name": one, "subject": one, "type": "service", "response_type": "Singleton"}
            for one in subjects.client_services()
        ),
        *({"name": one, "subject": one, "type": "stream"} for one in subjects.client_feeds()),
    ]
    stored = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), UNLIMITED)
    claims = {
        "exports": exports,
        "limits": {**_limits(exports=len(exports), imports=0), **stored},
        "signing_keys": [_scope(key, role, subjects) for role, key in roles.items()],
        "revocations": revocations,
        "type": "account",
    }
    return encode(signer, account, subjects.name, claims, issued=issued)


def client_account(
    signer: str,
    account: str,
    subjects: Subjects,
    client: int,
    federation: str,
    issued: int,
    *,
    roles: dict[str, str],
    revocations: dict[str, int],
    closed: bool = False,
) -> str:
    """The token of a client's account: its imports and nothing else; ``closed`` admits nobody."""
    kinds = {"service": subjects.client_services(client), "stream": subjects.client_feeds(client)}
    imports = [
        {"name": one, "subject": one, "account": federation, "type": kind}
        for kind, all_of_them in kinds.items()
        for one in all_of_them
    ]
    limits = {
        **_limits(exports=0, imports=len(imports)),
        "conn": CLIENT_CONNECTIONS,
        "subs": CLIENT_SUBSCRIPTIONS,
    }
    claims = {
        "imports": [] if closed else imports,
        "limits": limits,
        "signing_keys": [_scope(key, role, subjects, client) for role, key in roles.items()],
        "revocations": {**revocations, "*": issued} if closed else revocations,
        "type": "account",
    }
    return encode(signer, account, f"{subjects.name}/client-{client}", claims, issued=issued)


def user(signer: str, account: str, subject: str, name: str, issued: int, expires: int) -> str:
    """The token of a user, signed by the key of its role: it may do what the account says of this role.

    The token itself names no subjects. It is sent in one line when a connection starts, and the subjects of a
    server would be longer than the 4096 bytes that a broker reads of it.
    """
    claims = {"issuer_account": account, "type": "user"}
    return encode(signer, subject, name, claims, issued=issued, expires=expires)


def system_user(signer: str, subject: str, issued: int, expires: int) -> str:
    """The token of the operator's user in the system account."""
    allowed = {"publish": [*SYSTEM_CALLS], "subscribe": [f"{inbox('system')}.>"]}
    claims = {**_template(allowed), "type": "user"}
    return encode(signer, subject, "system", claims, issued=issued, expires=expires)


def _scope(key: str, role: str, subjects: Subjects, client: int | None = None) -> dict[str, Any]:
    template = _template(subjects.permissions(role, client))
    return {"kind": "user_scope", "key": key, "role": role, "template": template}


def _template(allowed: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "pub": {"allow": allowed["publish"]},
        "sub": {"allow": allowed["subscribe"]},
        "subs": UNLIMITED,
        "data": UNLIMITED,
        "payload": UNLIMITED,
        "allowed_connection_types": ["STANDARD"],
    }


def _limits(*, exports: int, imports: int) -> dict[str, Any]:
    free = dict.fromkeys(("subs", "data", "payload", "conn"), UNLIMITED)
    no_more = {"imports": imports, "exports": exports, "leaf": 0}
    return {**free, **no_more, "wildcards": True, "disallow_bearer": True}


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _pair(seed: str) -> Any:
    read = nkeys.from_seed
    try:
        return read(bytearray(seed.encode()))
    except Exception as error:
        raise ConfigError(
            "a key is damaged: its seed is not one of NATS; qafel keys makes a new one"
        ) from error
