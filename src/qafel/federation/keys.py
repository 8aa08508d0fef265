"""An operator's keys: a private CA with a certificate for the broker, and an NKey for the server and each
client. The broker's configuration lets every key do what its owner needs and nothing else.

    DIR/ca.pem, ca-key.pem               the CA; ca-key.pem signs, and stays with the operator
    DIR/broker.pem, broker-key.pem       the broker's certificate
    DIR/users.json                       public keys and permissions: all that the broker needs to know
    DIR/server/{ca.pem, seed.nk}         what goes to the server (--keys DIR/server)
    DIR/client-7/{ca.pem, seed.nk}       what goes to client 7
"""

import datetime
import ipaddress
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qafel.errors import ConfigError, MissingExtraError
from qafel.federation.subjects import Subjects

DAYS = 365


def make(
    folder: Path,
    name: str,
    clients: Iterable[int],
    *,
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    days: float = DAYS,
) -> list[Path]:
    """Make what is missing of a federation's keys; adding a client later leaves the others as they are."""
    names, folder = Subjects(name), Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        users = _users(folder)
        if users and users["name"] != name:
            raise ConfigError(f"{folder} holds the keys of {users['name']!r}, not of {name!r}")
        if not (folder / "ca.pem").exists() or _expired(folder / "ca.pem"):
            _certificates(folder, hosts, days)
            for who in users.get("users", {}):
                _write(folder / who / "ca.pem", (folder / "ca.pem").read_bytes())
        made = []
        keyed = dict(users.get("users", {}))
        for who, permissions in [
            ("server", names.server_permissions()),
            *((f"client-{client}", names.client_permissions(client)) for client in clients),
        ]:
            if who not in keyed:
                keyed[who] = {"nkey": _seed(folder / who, folder / "ca.pem"), **permissions}
                made.append(folder / who)
        _write(folder / "users.json", json.dumps({"name": name, "users": keyed}, indent=1).encode())
    except OSError as error:
        raise ConfigError(f"cannot write keys to {folder}: {error.strerror or error}") from error
    return made


def broker_block(folder: Path) -> list[str]:
    """The lines of a broker's configuration that know these keys.

    The server and the streams have an account of their own, and clients reach it through services only. In
    one account, a client could have the broker write an acknowledgement to any subject it names as the place
    for the answer.
    """
    users = _users(Path(folder))
    if not users:
        raise ConfigError(f"{folder} has no users.json; qafel keys makes one")
    pem = Path(folder).resolve()
    lines = [
        "tls {",
        f"  cert_file: {json.dumps(str(pem / 'broker.pem'))}",
        f"  key_file: {json.dumps(str(pem / 'broker-key.pem'))}",
        "  timeout: 5",
        "}",
    ]
    names = Subjects(users["name"])
    server = _user(users["users"]["server"], ", allow_responses: true")
    clients = [_user(user) for who, user in users["users"].items() if who != "server"]
    services = json.dumps(names.services())[1:-1].split(", ")
    exports = [*(f"{{ service: {subject} }}" for subject in services), f'{{ stream: "{names.live}" }}']
    theirs = "{ account: SERVER, subject: %s }"
    imports = [
        *(f"{{ service: {theirs % subject} }}" for subject in services),
        f"{{ stream: {theirs % json.dumps(names.live)} }}",
    ]
    return [
        *lines,
        "accounts {",
        *_account("SERVER", [server], "exports", exports, ["    jetstream: enabled"]),
        *_account("CLIENTS", clients, "imports", imports, []),
        "}",
    ]


def _account(name: str, users: list[str], kind: str, lines: list[str], more: list[str]) -> list[str]:
    inside = [f"    {kind}: [", *(f"      {line}" for line in lines), "    ]"]
    return [
        f"  {name} {{",
        *more,
        "    users: [",
        *(f"      {user}" for user in users),
        "    ]",
        *inside,
        "  }",
    ]


def _user(user: dict[str, Any], more: str = "") -> str:
    publish, subscribe = json.dumps(user["publish"]), json.dumps(user["subscribe"])
    permissions = f"publish: {publish}, subscribe: {subscribe}{more}"
    return f"{{ nkey: {user['nkey']}, permissions: {{ {permissions} }} }}"


def _users(folder: Path) -> dict[str, Any]:
    path = folder / "users.json"
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    return found


def _seed(folder: Path, ca: Path) -> str:
    """A new NKey in a folder of its own; its public half."""
    try:
        import nkeys
    except ImportError as error:
        raise MissingExtraError("making keys", "federation") from error
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    folder.mkdir(exist_ok=True)
    _write(folder / "seed.nk", bytes(seed), secret=True)
    _write(folder / "ca.pem", ca.read_bytes())
    return str(nkeys.from_seed(bytearray(seed)).public_key.decode())


def _certificates(folder: Path, hosts: Sequence[str], days: float) -> None:
    """The CA, and the broker's certificate for these hosts."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingExtraError("making certificates", "federation") from error

    def private() -> ec.EllipticCurvePrivateKey:
        return ec.generate_private_key(ec.SECP256R1())

    def builder(subject: str, issuer: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=max(1, 1 - days)))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    def save(name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        pem = serialization.Encoding.PEM
        plain = serialization.NoEncryption()
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        _write(folder / f"{name}-key.pem", secret, secret=True)
        _write(folder / f"{name}.pem", certificate.public_bytes(pem))

    ca_key, broker_key = private(), private()
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = (
        builder("qafel CA", "qafel CA", ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    broker = (
        builder("qafel broker", "qafel CA", broker_key.public_key())
        .add_extension(names, critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    save("broker", broker_key, broker)
    save("ca", ca_key, ca)


def _expired(path: Path) -> bool:
    from cryptography import x509

    end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    return end < datetime.datetime.now(datetime.UTC)


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Write a file whole; a secret one for its owner's eyes only."""
    half = path.with_suffix(".half")
    half.unlink(missing_ok=True)
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    half.replace(path)
