"""Keys of federations: make, list, revoke and rotate them.

    keys = Keys("runs/keys")
    keys.new("faces", range(100), hosts=["broker.example.org"])
    keys.revoke("faces", "client-7", broker="tls://broker.example.org:4222")

The folder stays with the operator. ``runs/keys/broker`` is for the broker, and each file in
``runs/keys/faces`` is for the party that it is named after: ``server.key``, ``client-7.key`` and so on.

A change is written to ``runs/keys/broker``. A broker that runs learns of it if its address is given; a broker
that uses this very folder also admits new clients without it, and learns the rest at its next start.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qafel import files
from qafel.errors import BrokerError, ConfigError
from qafel.federation.keys import certificates, jwt, register
from qafel.federation.keys.certificates import HOSTS
from qafel.federation.keys.credentials import FORMAT, Key, read
from qafel.federation.keys.register import Account, Federation, Holder, Register
from qafel.federation.subjects import Subjects
from qafel.federation.waiting import complete

__all__ = ["DAYS", "HOSTS", "Entry", "Key", "Keys", "read"]

DAYS = 365.0
DAY_SECONDS = 86400
AT_ONCE = 64
"""The number of accounts that are sent to a broker at a time."""
ROLES = ("server", "operator", "observer")


class Entry(msgspec.Struct, frozen=True):
    """A line of the list of keys; times are seconds since 1970."""

    name: str
    who: str
    client: int | None
    created: int
    expires: int
    revoked: int | None
    path: str


class Keys:
    """The keys in a folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def new(
        self,
        name: str,
        clients: Iterable[int] = (),
        *,
        hosts: Sequence[str] = (),
        days: float = DAYS,
        mutual: bool = False,
        broker: str | None = None,
    ) -> list[Path]:
        """Make the keys that are missing, and return their files; existing keys stay as they are."""
        register.check_name(name)
        numbers = list(clients)
        if bad := next((one for one in numbers if one < 0), None):
            raise ConfigError(f"client id must be a non-negative integer, got {bad}")
        _check_days(days)
        known = register.load(self.folder)
        if known and mutual and not known.mutual:
            raise ConfigError(f"the keys in {self.folder} have no certificates for mutual TLS; make new ones")
        with register.changing(self.folder):
            book = register.load(self.folder) or _book(mutual)
            certificates.ensure(self.folder, hosts, days)
            if not (self.folder / "operator" / "system.key").exists():
                self._issue_system(book)
            federation = book.federations.setdefault(name, Federation(Account.new(*ROLES)))
            made = []
            for who in (*ROLES, *(f"client-{one}" for one in dict.fromkeys(numbers))):
                if who not in federation.holders:
                    if who not in ROLES:
                        federation.clients[who] = Account.new("client")
                    made.append(self._issue(book, name, who, days))
            self._save(book, book.tokens(name))
        if broker:
            self._push(broker, book.tokens(name))
        return made

    def entries(self, name: str | None = None) -> list[Entry]:
        """Who has a key; of one federation, or of all."""
        book = self._book()
        names = sorted(book.federations) if name is None else [name]
        return [
            Entry(one, who, _client(who), has.created, has.expires, has.revoked, str(self._path(one, who)))
            for one in names
            for who, has in book.federation(one).holders.items()
        ]

    def revoke(self, name: str, who: str, *, broker: str | None = None) -> None:
        """Refuse a holder from now on; a running broker that is named here cuts its connection."""
        with self._changing() as book:
            holder = self._holder(book, name, who)
            account = book.federation(name).account_of(who)
            if holder.revoked is None:
                account.revoke(holder.user)
                holder.revoked = account.issued
                account.closed = who not in ROLES
            tokens = book.token(name, who)
            self._save(book, tokens)
        if broker:
            self._push(broker, tokens)

    def rotate(self, name: str, who: str, *, days: float = DAYS, broker: str | None = None) -> Path:
        """Make a new key for a holder, and refuse the old one; this readmits a holder who was revoked."""
        _check_days(days)
        with self._changing() as book:
            holder = self._holder(book, name, who)
            account = book.federation(name).account_of(who)
            account.revoke(holder.user)
            account.closed = False
            path = self._issue(book, name, who, days)
            tokens = book.token(name, who)
            self._save(book, tokens)
        if broker:
            self._push(broker, tokens)
        return path

    def rotate_system(self, *, broker: str | None = None) -> Path:
        """Make a new key with which the operator changes accounts of a broker, and refuse the old one."""
        path = self.folder / "operator" / "system.key"
        with self._changing() as book:
            if path.exists():
                book.system.revoke(jwt.public_key(read(path).seed))
            self._issue_system(book)
            self._save(book, {})
        if broker:
            self._push(broker, book.system_token())
        return path

    def rotate_certificates(self, *, ca: bool = False, days: float = DAYS) -> list[Path]:
        """Renew the broker's certificate; with ``ca`` also the CA, and with it all files to hand out."""
        _check_days(days)
        changed = []
        with self._changing() as book:
            hosts = certificates.hosts_of((self.folder / "broker" / "broker.pem").read_bytes()) or HOSTS
            certificates.ensure(self.folder, hosts, days, renew="ca" if ca else "broker")
            entries = self.entries() if ca else []
            paths = [*(Path(entry.path) for entry in entries), self.folder / "operator" / "system.key"]
            for path in (path for path in paths if ca and path.exists()):
                tls = certificates.of_key(self.folder, path.stem, days, book.mutual)
                register.write(path, files.to_json(msgspec.structs.replace(read(path), **tls)))
                changed.append(path)
        return changed

    def _book(self) -> Register:
        book = register.load(self.folder)
        if book is None:
            raise ConfigError(f"there are no keys in {self.folder}; make some with qafel keys new")
        return book

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Register]:
        """The register, while nobody else changes it; ConfigError, and no new folder, if there is none."""
        self._book()
        with register.changing(self.folder):
            yield self._book()

    def _holder(self, book: Register, name: str, who: str) -> Holder:
        holders = book.federation(name).holders
        if who not in holders:
            raise ConfigError(
                f"there is no key of {who!r} in federation {name!r}; qafel keys list {self.folder} shows all"
            )
        return holders[who]

    def _path(self, name: str, who: str) -> Path:
        return self.folder / name / f"{who}.key"

    def _issue(self, book: Register, name: str, who: str, days: float) -> Path:
        """Make the key of a holder, with a new seed."""
        federation, client, seed = book.federation(name), _client(who), jwt.new_seed("user")
        account, role = federation.account_of(who), _role(who)
        now, public = int(time.time()), jwt.public_key(seed)
        holder = Holder(public, now, now + round(days * DAY_SECONDS))
        own = jwt.public_key(account.seed)
        token = jwt.user(account.roles[role], own, public, f"{name}/{who}", now, holder.expires)
        tls = certificates.of_key(self.folder, who, days, book.mutual)
        key = Key(name=name, role=role, client=client, jwt=token, seed=seed, ca=tls["ca"])
        register.write(self._path(name, who), files.to_json(msgspec.structs.replace(key, **tls)))
        federation.holders[who] = holder
        return self._path(name, who)

    def _issue_system(self, book: Register) -> None:
        seed, now = jwt.new_seed("user"), int(time.time())
        expires = now + round(certificates.CA_DAYS * DAY_SECONDS)
        token = jwt.system_user(book.system.seed, jwt.public_key(seed), now, expires)
        tls = certificates.of_key(self.folder, "system", certificates.CA_DAYS, book.mutual)
        key = Key(name="system", role="system", jwt=token, seed=seed, ca=tls["ca"])
        path = self.folder / "operator" / "system.key"
        register.write(path, files.to_json(msgspec.structs.replace(key, **tls)))

    def _save(self, book: Register, tokens: dict[str, str]) -> None:
        """Write the register, and what the broker needs of it."""
        register.save(self.folder, book)
        public, ((system, token),) = self.folder / "broker", book.system_token().items()
        for account, text in {**tokens, system: token}.items():
            register.write(public / "jwt" / f"{account}.jwt", text.encode())
        operator = jwt.operator(book.operator, system, book.created)
        register.write(public / "operator.jwt", operator.encode())
        about = {"format": FORMAT, "system_account": system, "mutual": book.mutual}
        register.write(public / "broker.json", files.to_json(about))

    def _push(self, broker: str, tokens: dict[str, str]) -> None:
        """Give a running broker the tokens of accounts; it cuts connections that they no longer admit."""
        try:
            complete(_send(broker, read(self.folder / "operator" / "system.key"), [*tokens.values()]))
        except (BrokerError, ConfigError) as error:
            passes = isinstance(error, BrokerError) and error.may_pass
            text = f"{self.folder} is changed, but not the broker: {error}"
            raise BrokerError(text, may_pass=passes) from error


async def _send(broker: str, key: Key, tokens: Sequence[str]) -> None:
    from qafel.federation.connection import Connection  # they import this package
    from qafel.federation.nats import checked

    async with await Connection.open(broker, Subjects("system"), "system", key=key, patience=0) as one:
        for start in range(0, len(tokens), AT_ONCE):
            group = tokens[start : start + AT_ONCE]
            answers = await asyncio.gather(*(one.request(jwt.SYSTEM_CALLS[0], t.encode()) for t in group))
            for answer in answers:
                checked(answer)


def _book(mutual: bool) -> Register:
    seed, now = jwt.new_seed("operator"), int(time.time())
    return Register(created=now, operator=seed, system=Account.new(), mutual=mutual)


def _client(who: str) -> int | None:
    return int(who.removeprefix("client-")) if who.startswith("client-") else None


def _role(who: str) -> Any:
    return who if _client(who) is None else "client"


def _check_days(days: float) -> None:
    if not 0 < days <= 36500:
        raise ConfigError(f"keys are valid for more than 0 and at most 36,500 days, got {days:g}")
