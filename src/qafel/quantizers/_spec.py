"""The arguments of a spec, such as ``4,bucket=256,norm=max``.

A spec is ``name:argument,key=value,flag``. Every SpecError states the problem and carries the nearest valid
spec: the same one with the invalid item repaired or left out.
"""

import difflib
import math
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from qafel.errors import SpecError


class Arguments:
    """The arguments of one spec. ``nearest`` returns the valid spec that is nearest to a repaired one."""

    def __init__(self, name: str, rest: str, nearest: Callable[[str], str]) -> None:
        self.name, self.rest, self._nearest = name, rest, nearest
        self.items = [item.strip() for item in rest.split(",")] if rest else []
        self.places: dict[str, int] = {}

    def expect(self, argument: str | None, options: Sequence[str], flags: Sequence[str] = ()) -> None:
        """Declare what is allowed: one unnamed argument first, then options ``key=value`` and flags.

        Raises SpecError if an item is not allowed or is given twice.
        """
        for place, item in enumerate(self.items):
            key, equals, value = (part.strip() for part in item.partition("="))
            if not equals and item in flags:
                pass
            elif not equals and place == 0 and argument:
                key = argument
            elif key not in options or not value:
                self.fail(place, *self._repair(key, value, options, flags))
            if key in self.places:
                self.fail(place, f"{key} is given twice", None)
            self.places[key] = place

    def _repair(
        self, key: str, value: str, options: Sequence[str], flags: Sequence[str]
    ) -> tuple[str, str | None]:
        allowed = [f"{option}=…" for option in options] + list(flags)
        problem = f"{self.name} does not know {key!r}; it takes {', '.join(allowed) or 'no options'}"
        if flag := difflib.get_close_matches(key, flags, 1, 0.6):
            return problem, flag[0]
        closest = difflib.get_close_matches(key, options, 1, 0.5)
        return problem, f"{closest[0]}={value}" if closest and value else None

    def text(self, key: str) -> str | None:
        """Return the text of an argument or option, None if it was not given."""
        if key not in self.places:
            return None
        item = self.items[self.places[key]]
        return item.partition("=")[2].strip() if "=" in item else item

    def flag(self, key: str) -> bool:
        """Return whether a flag was given."""
        return key in self.places

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return an integer from ``low`` to ``high``, None if it was not given, or raise SpecError."""
        text = self.text(key)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            problem = f"{key} must be a whole number from {low} to {high}, got {text!r}"
            self.fail(self.places[key], problem, self._number(key, low, high, text))
        return value

    def fraction(self, key: str) -> Decimal | None:
        """Return a fraction in (0, 1) or a whole number of at least 1, exactly as given, None if it was not
        given, or raise SpecError.
        """
        text = self.text(key)
        if text is None:
            return None
        value = _decimal(text)
        valid = value.is_finite() and value > 0 and -12 <= value.adjusted() < 10 and len(f"{value:f}") <= 14
        if not valid or (value >= 1 and value != int(value)):
            repaired = str(math.ceil(value)) if value.is_finite() and 1 < value < 10**9 else "0.1"
            problem = f"{key} must be a fraction between 0 and 1 or a whole number, got {text!r}"
            self.fail(self.places[key], problem, self._item(key, repaired))
        return value

    def decimal(self, key: str, low: Decimal, high: Decimal) -> Decimal:
        """Return a number from ``low`` to ``high`` without trailing zeros, or raise SpecError."""
        text = self.text(key) or ""
        value = _decimal(text)
        if not (value.is_finite() and low <= value <= high and len(f"{value:f}") <= 10):
            near = min(max(value, low), high) if value.is_finite() else low
            near = near if len(f"{near:f}") <= 10 else round(near, 6)
            problem = f"{key} must be a number from {low:f} to {high:f} (at most 10 characters), got {text!r}"
            self.fail(self.places[key], problem, self._item(key, f"{near:f}"))
        return value.normalize() + 0

    def choice(self, key: str, choices: Sequence[str]) -> str | None:
        """Return one of ``choices``, None if it was not given, or raise SpecError."""
        text = self.text(key)
        if text is not None and text not in choices:
            closest = (difflib.get_close_matches(text, choices, 1, 0.0) or choices)[0]
            problem = f"{key} must be {' or '.join(choices)}, got {text!r}"
            self.fail(self.places[key], problem, self._item(key, closest))
        return text

    def fail(self, place: int, problem: str, repaired: str | None) -> NoReturn:
        """Raise SpecError with the spec in which the item at ``place`` is replaced by ``repaired``, or left
        out if that is None.
        """
        items = [item for k, item in enumerate(self.items) if k != place]
        if repaired is not None:
            items.insert(place, repaired)
        self.fail_with(problem, self.name + (":" + ",".join(items) if items else ""))

    def fail_with(self, problem: str, candidate: str) -> NoReturn:
        """Raise SpecError with ``candidate``, or the spec nearest to it if it is not valid either."""
        given = f"{self.name}:{self.rest}" if self.rest else self.name
        raise SpecError(f"{given}: {problem}", self._nearest(candidate))

    def _number(self, key: str, low: int, high: int, text: str) -> str:
        try:
            value = round(float(text))
        except (ValueError, OverflowError):
            value = 4
        return self._item(key, str(min(max(value, low), high)))

    def _item(self, key: str, value: str) -> str:
        return f"{key}={value}" if "=" in self.items[self.places[key]] else value


def _decimal(text: str) -> Decimal:
    """Return the number that ``text`` is, NaN if it is none."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("nan")
