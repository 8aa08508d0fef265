"""Keys of a federation: a private CA with a certificate for the broker, and an NKey for the server and each
client. The broker's configuration gives every key the permissions that its owner needs, and no others.

    DIR/ca.pem, ca-key.pem               the CA; ca-key.pem signs certificates and stays with the operator
    DIR/broker.pem, broker-key.pem       the broker's certificate
    DIR/users.json                       public keys and permissions, for the broker
    DIR/server/{ca.pem, seed.nk}         for the server (--keys DIR/server)
    DIR/client-7/{ca.pem, seed.nk}       for client 7
"""

import datetime
import ipaddress
import json
import os
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qafel import files
from qafel.errors import ConfigError, MissingExtraError
from qafel.federation.subjects import Subjects

DAYS = 365
FORMAT = 1
"""The version of users.json."""


def make(
    folder: Path,
    name: str,
    clients: Iterable[int],
    *,
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    days: float = DAYS,
) -> list[Path]:
    """Make the keys that are missing, and return their folders; existing keys stay as they are."""
    subjects, folder = Subjects(name), Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        users = _users(folder)
        if users and users["name"] != name:
            raise ConfigError(f"{folder} holds the keys of {users['name']!r}, not of {name!r}")
        if not (folder / "ca.pem").exists() or _expired(folder / "ca.pem"):
            _certificates(folder, hosts, days)
            for who in users.get("users", {}):
                files.write(folder / who / "ca.pem", (folder / "ca.pem").read_bytes())
        made = []
        keyed = dict(users.get("users", {}))
        for who, permissions in [
            ("server", subjects.server_permissions()),
            *((f"client-{client}", subjects.client_permissions(client)) for client in clients),
        ]:
            if who not in keyed:
                keyed[who] = {"nkey": _seed(folder / who, folder / "ca.pem"), **permissions}
                made.append(folder / who)
        files.write_json(folder / "users.json", {"format": FORMAT, "name": name, "users": keyed})
    except OSError as error:
        raise ConfigError(f"cannot write keys to {folder}: {error.strerror or error}") from error
    return made


def broker_block(folder: Path) -> list[str]:
    """The lines of a broker's configuration that admit these keys.

    The server and the streams have an account of their own, which clients reach only through services. In
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
    subjects = Subjects(users["name"])
    server = _user(users["users"]["server"], ", allow_responses: true")
    clients = [_user(user) for who, user in users["users"].items() if who != "server"]
    services = json.dumps(subjects.services())[1:-1].split(", ")
    exports = [*(f"{{ service: {subject} }}" for subject in services), f'{{ stream: "{subjects.live}" }}']
    theirs = "{ account: SERVER, subject: %s }"
    imports = [
        *(f"{{ service: {theirs % subject} }}" for subject in services),
        f"{{ stream: {theirs % json.dumps(subjects.live)} }}",
    ]
    return [
        *lines,
        "accounts {",
        *_account("SERVER", [server], "exports", exports, ["    jetstream: enabled"]),
        *_account("CLIENTS", clients, "imports", imports, []),
        "}",
    ]


def credentials(url: str, keys: Path | None) -> dict[str, Any]:
    """The options of a connection with the keys in a folder: ``ca.pem`` and ``seed.nk``."""
    if keys is None:
        return {}
    seed = keys / "seed.nk"
    if not seed.is_file():
        raise ConfigError(f"{keys} has no seed.nk; qafel keys makes a folder for every client")
    options: dict[str, Any] = {"nkeys_seed": str(seed)}
    if (keys / "ca.pem").is_file():
        if not url.startswith("tls://"):
            raise ConfigError(f"{keys} holds a CA: the broker's address must start with tls://, got {url!r}")
        options["tls"] = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    return options


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
        users: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    if users.get("format") != FORMAT:
        raise ConfigError(
            f"{path} has format {users.get('format', 0)}; this version of qafel reads {FORMAT}; "
            "make new keys in an empty folder with qafel keys"
        )
    return users


def _seed(folder: Path, ca: Path) -> str:
    """Make an NKey in a folder and return its public half."""
    try:
        import nkeys
    except ImportError as error:
        raise MissingExtraError("making keys", "federation") from error
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    folder.mkdir(exist_ok=True)
    files.write(folder / "seed.nk", bytes(seed), mode=0o600)
    files.write(folder / "ca.pem", ca.read_bytes())
    return str(nkeys.from_seed(bytearray(seed)).public_key.decode())


def _certificates(folder: Path, hosts: Sequence[str], days: float) -> None:
    """Make the CA, and the broker's certificate for these hosts."""
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
        files.write(folder / f"{name}-key.pem", secret, mode=0o600)
        files.write(folder / f"{name}.pem", certificate.public_bytes(pem))

    ca_key, broker_key = private(), private()
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = (
        builder("qafel CA", "qafel CA", ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    hostnames = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    broker = (
        builder("qafel broker", "qafel CA", broker_key.public_key())
        .add_extension(hostnames, critical=False)
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
