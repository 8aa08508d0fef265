"""The certificates of a broker and, with mutual TLS, of its clients, signed by a private CA."""

import datetime
import ipaddress
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qafel.errors import ConfigError
from qafel.federation.keys.register import write
from qafel.lazy import Lazy

x509 = Lazy("cryptography.x509")
hashes = Lazy("cryptography.hazmat.primitives.hashes")
serialization = Lazy("cryptography.hazmat.primitives.serialization")
ec = Lazy("cryptography.hazmat.primitives.asymmetric.ec")
HOSTS = ("127.0.0.1", "localhost")
CA_DAYS = 3650.0
"""How long a CA is valid, unless what it signs lasts longer."""


class Certificate(NamedTuple):
    """A certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes


def ensure(folder: Path, hosts: Sequence[str], days: float, renew: str = "") -> None:
    """Make the CA and the broker's certificate, if they are missing, expired or for other hosts.

    ``renew`` makes a new certificate of the ``broker`` in any case, and with ``ca`` also a new CA.
    """
    private, public = folder / "operator", folder / "broker"
    if renew == "ca" or not (private / "ca-key.pem").exists():
        made = authority(max(days, CA_DAYS))
        write(private / "ca-key.pem", made.key)
        write(private / "ca.pem", made.certificate)
        renew = "ca"
    ca = _authority_of(folder)
    write(public / "ca.pem", ca.certificate)
    path, known = public / "broker.pem", list(HOSTS)
    if path.exists() and (public / "broker-key.pem").exists():
        known = hosts_of(path.read_bytes())
        expired = ends(path.read_bytes(), str(path)) < time.time()
        if not renew and not expired and set(hosts) <= set(known):
            return
    made = issue(ca, "qafel broker", days, list(dict.fromkeys([*hosts, *known])))
    write(public / "broker-key.pem", made.key)
    write(path, made.certificate)


def of_key(folder: Path, who: str, days: float, mutual: bool) -> dict[str, str]:
    """What a key says about TLS: the CA and, with mutual TLS, a certificate."""
    ca = _authority_of(folder)
    if not mutual:
        return {"ca": ca.certificate.decode()}
    own = issue(ca, who, days)
    texts = {"certificate": own.certificate.decode(), "certificate_key": own.key.decode()}
    return {"ca": ca.certificate.decode(), **texts}


def _authority_of(folder: Path) -> Certificate:
    private = folder / "operator"
    return Certificate((private / "ca.pem").read_bytes(), (private / "ca-key.pem").read_bytes())


def authority(days: float = CA_DAYS) -> Certificate:
    """A new CA, which signs certificates of brokers and clients but no further CA."""
    key = _private()
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    signed = (
        _builder("qafel CA", _name("qafel CA"), key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(signed, key)


def issue(ca: Certificate, name: str, days: float, hosts: Sequence[str] = ()) -> Certificate:
    """A certificate of a broker for these hosts, or, without hosts, of a client.

    The broker's serves for both sides, since the nodes of a cluster connect to each other.
    """
    key = _private()
    signer_key, signer = _load_key(ca.key), load(ca.certificate, "the CA's certificate")
    known = x509.ExtendedKeyUsageOID
    usages = [known.CLIENT_AUTH, known.SERVER_AUTH] if hosts else [known.CLIENT_AUTH]
    builder = (
        _builder(name, signer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False
        )
    )
    if hosts:
        alternatives = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
        builder = builder.add_extension(alternatives, critical=False)
    return _pem(builder.sign(signer_key, hashes.SHA256()), key)


def load(pem: bytes, what: str) -> Any:
    """The parsed certificate; ConfigError names ``what`` if it is damaged."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ConfigError(f"{what} is damaged; renew it with qafel keys rotate") from error


def ends(pem: bytes, what: str = "a certificate") -> int:
    """When a certificate expires, in seconds since 1970."""
    return int(load(pem, what).not_valid_after_utc.timestamp())


def hosts_of(pem: bytes) -> list[str]:
    """The names and addresses for which a certificate is valid."""
    try:
        names = load(pem, "the broker's certificate").extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names.value]


def _builder(subject: str, issuer: Any, public: Any, days: float) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=max(1.0, 1.0 - days)))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(text: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"a host is a name or an address in ASCII, got {host!r}") from error


def _private() -> Any:
    return ec.generate_private_key(ec.SECP256R1())


def _load_key(pem: bytes) -> Any:
    try:
        return serialization.load_pem_private_key(pem, None)
    except ValueError as error:
        raise ConfigError("the CA's key is damaged; make new keys in an empty folder") from error


def _pem(certificate: Any, key: Any) -> Certificate:
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(certificate.public_bytes(pem), secret)
