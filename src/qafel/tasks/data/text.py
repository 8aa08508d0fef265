"""Texts: plays in which roles take turns, and LEAF's Shakespeare and Sent140.

Characters are numbered by a fixed alphabet and words by a hash, so that every client of a federation has the
same numbers without a dictionary to agree on.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError
from qafel.tasks.data.files import reading
from qafel.tasks.data.table import Table
from qafel.wire import fingerprint

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The characters; any other one counts as a question mark."""
SEQUENCE = 80
"""Characters in a sequence."""
MIN_CHARACTERS = 500
"""Roles with no more characters are left out."""
WORDS, VOCABULARY = 25, 10_000
"""Words of a tweet, and numbers of words; 0 fills up short tweets."""

_CODES = np.full(1 << 16, ALPHABET.index("?"), np.uint8)
_CODES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


def characters(text: str) -> npt.NDArray[np.uint8]:
    """The numbers of the characters of a text."""
    return _CODES[np.frombuffer(text.encode("utf-16-le", "replace"), np.uint16)]


def is_play(path: Path) -> bool:
    """Whether a file begins with a line ``Role:``."""
    with reading(path), path.open("rb") as file:
        first = file.read(200).lstrip().split(b"\n")[0].rstrip()
    return path.suffix.lower() != ".npz" and first.endswith(b":") and first.isascii()


def plays(path: Path) -> Table:
    """A text of turns, separated by empty lines, each after a line ``Role:``; one user for every role.

    A sample is a sequence of 80 characters of a role; its target is the same sequence one character later.
    """
    with reading(path, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8")
    roles: dict[str, list[str]] = {}
    for turn in text.replace("\r\n", "\n").split("\n\n"):
        role, colon, words = turn.strip("\n").partition(":\n")
        if colon and "\n" not in role and words:
            roles.setdefault(role, []).append(words)
    x, y, users = list[Any](), list[Any](), list[Any]()
    for role in sorted(roles):
        line = characters("\n".join(roles[role]))
        if line.size > MIN_CHARACTERS:
            whole = (line.size - 1) // SEQUENCE
            x.append(line[: whole * SEQUENCE].reshape(whole, SEQUENCE))
            y.append(line[1 : whole * SEQUENCE + 1].reshape(whole, SEQUENCE))
            users.append(np.full(whole, len(users), np.int32))
    if not users:
        raise ConfigError(
            f"{path} must have turns after lines 'Role:', separated by empty lines, of roles with more than "
            f"{MIN_CHARACTERS} characters"
        )
    columns = np.concatenate(x), np.concatenate(y), np.concatenate(users), None
    return Table(*columns, str(path), classes=len(ALPHABET), vocabulary=len(ALPHABET))


def leaf_text(samples: list[Any], targets: list[Any], owners: Any, held: Any, source: str) -> Table:
    """LEAF's Shakespeare (texts and the character after each), or Sent140 (rows of a table with a tweet)."""
    if isinstance(samples[0], str):
        return Table(
            np.stack([_padded(characters(sample)[-SEQUENCE:]) for sample in samples]),
            np.array([int(characters(str(target))[0]) for target in targets]),
            owners,
            held,
            source,
            classes=len(ALPHABET),
            vocabulary=len(ALPHABET),
        )
    tweets = np.array([_words(row[4].split()) for row in samples], np.int32)
    return Table(
        tweets, np.array([int(target) for target in targets]), owners, held, source, vocabulary=VOCABULARY
    )


def _padded(line: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.pad(line, (SEQUENCE - line.size, 0), constant_values=ALPHABET.index(" "))


def _words(words: Iterable[str]) -> list[int]:
    numbers = [1 + fingerprint(word.lower().encode()) % (VOCABULARY - 1) for word in words][:WORDS]
    return numbers + [0] * (WORDS - len(numbers))
