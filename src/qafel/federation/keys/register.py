"""The register of the operator: who has a key, and the secrets that sign keys.

    DIR/operator/register.json       seeds of the operator and of all accounts, and who has a key until when
    DIR/operator/ca.pem, ca-key.pem  the CA
    DIR/operator/system.key          the key with which the operator changes accounts of a running broker
    DIR/broker/                      everything that a broker needs; no key of the CA, no seed
    DIR/NAME/client-7.key, …         the files to hand out

Folders have mode 0700 and files 0600.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from qafel import files
from qafel.errors import ConfigError
from qafel.extras import require
from qafel.federation.keys import credentials, jwt
from qafel.federation.subjects import Subjects

RESERVED = ("operator", "broker")
"""Names of folders beside those of the federations."""


class Account(msgspec.Struct):
    """A NATS account. Its token depends only on these fields and on the subjects of the federation."""

    seed: str
    issued: int
    roles: dict[str, str] = {}
    """The seeds that sign the users of each role."""
    revocations: dict[str, int] = {}
    closed: bool = False
    """Whether it admits nobody."""

    @classmethod
    def new(cls, *roles: str) -> "Account":
        """An account with new seeds."""
        seeds = {role: jwt.new_seed("account") for role in roles}
        return cls(jwt.new_seed("account"), int(time.time()), seeds)

    @property
    def public_roles(self) -> dict[str, str]:
        """The public keys of the roles."""
        return {role: jwt.public_key(seed) for role, seed in self.roles.items()}

    def changed(self) -> None:
        """Make the next token newer than the last one, even in the same second."""
        self.issued = max(int(time.time()), self.issued + 1)

    def revoke(self, user: str) -> None:
        """Refuse a user from now on."""
        self.changed()
        self.revocations[user] = self.issued


class Holder(msgspec.Struct):
    """Someone who has a key."""

    user: str
    created: int
    expires: int
    revoked: int | None = None


class Federation(msgspec.Struct):
    """The accounts of a federation, and who has a key."""

    account: Account
    holders: dict[str, Holder] = {}
    clients: dict[str, Account] = {}
    """The accounts of the clients, each by its holder."""

    def account_of(self, who: str) -> Account:
        """The account of a holder."""
        return self.clients.get(who, self.account)


class Register(msgspec.Struct, kw_only=True):
    """Everything that the operator knows."""

    format: int = credentials.FORMAT
    created: int
    operator: str
    system: Account
    mutual: bool = False
    federations: dict[str, Federation] = {}

    def federation(self, name: str) -> Federation:
        """A federation; ConfigError if there is none of this name."""
        if name not in self.federations:
            known = ", ".join(sorted(self.federations)) or "none"
            raise ConfigError(f"there is no federation {name!r} in this folder; there is {known}")
        return self.federations[name]

    def system_token(self) -> dict[str, str]:
        """The token of the system account, by public key."""
        public = jwt.public_key(self.system.seed)
        token = jwt.system_account(self.operator, public, self.system.issued, self.system.revocations)
        return {public: token}

    def tokens(self, name: str) -> dict[str, str]:
        """The tokens of all accounts of a federation, by public key."""
        tokens = self.token(name, "server")
        for who in self.federation(name).clients:
            tokens |= self.token(name, who)
        return tokens

    def token(self, name: str, who: str) -> dict[str, str]:
        """The token of the account of a holder, by public key."""
        federation, subjects = self.federation(name), Subjects(name)
        own, account = jwt.public_key(federation.account.seed), federation.account_of(who)
        roles, revocations = account.public_roles, account.revocations
        if account is federation.account:
            token = jwt.federation_account(
                self.operator, own, subjects, account.issued, roles=roles, revocations=revocations
            )
            return {own: token}
        public, client = jwt.public_key(account.seed), int(who.removeprefix("client-"))
        token = jwt.client_account(
            self.operator,
            public,
            subjects,
            client,
            own,
            account.issued,
            roles=roles,
            revocations=revocations,
            closed=account.closed,
        )
        return {public: token}


def check_name(name: str) -> None:
    """Raise ConfigError if a federation cannot have this name, or a folder here has it."""
    Subjects(name)
    if name.casefold() in RESERVED:
        raise ConfigError(f"a federation with keys cannot be called {name!r}: there is a folder of this name")


def load(folder: Path) -> Register | None:
    """Read the register of a folder; None: there is none yet."""
    credentials.check_folder(folder)
    path = folder / "operator" / "register.json"
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    credentials.check_format(data, path)
    try:
        return msgspec.json.decode(data, type=Register)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is damaged: {error}; restore it from a copy") from error


def save(folder: Path, register: Register) -> None:
    """Write the register of a folder."""
    write(folder / "operator" / "register.json", files.to_json(register))


def write(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, if it is not there with this content already."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir(mode=0o700, exist_ok=True)
    files.write(path, data, mode=0o600)


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Keep others from changing a folder of keys; an error of the disk becomes one sentence."""
    require("making keys", "federation")
    try:
        private = folder / "operator"
        for each in (folder, private):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        private.chmod(0o700)
        lock = os.open(private / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with contextlib.suppress(ImportError):
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
    except OSError as error:
        raise ConfigError(f"cannot write keys to {folder}: {error.strerror or error}") from error
