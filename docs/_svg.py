"""Small vector drawings: shapes, text and line charts as SVG, without dependencies."""

import math
from collections.abc import Sequence
from html import escape

INK, GRAY, PALE, RULE = "#1f2933", "#5b6770", "#eef2f3", "#c9d1d6"
COLORS = ("#00796b", "#c2571a", "#3f51b5", "#9c27b0", "#6d8b00")
FONT = "font-family='system-ui, -apple-system, Segoe UI, sans-serif'"
MONO = "font-family='ui-monospace, Menlo, Consolas, monospace'"


class Drawing:
    """A picture of some size, with a white background, so that it reads on light and dark pages."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 13,
        color: str = INK,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
        turn: float = 0,
    ) -> None:
        """One line of text; ``turn`` rotates it."""
        weight = " font-weight='600'" if bold else ""
        turned = f" transform='rotate({turn:g} {x:.1f} {y:.1f})'" if turn else ""
        self._parts.append(
            f"<text x='{x:.1f}' y='{y:.1f}' {MONO if mono else FONT} font-size='{size:g}' fill='{color}' "
            f"text-anchor='{anchor}'{weight}{turned}>{escape(words)}</text>"
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = PALE,
        line: str = "none",
        radius: float = 4,
    ) -> None:
        """A rectangle."""
        self._parts.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' rx='{radius:g}' "
            f"fill='{fill}' stroke='{line}'/>"
        )

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        color: str = INK,
        width: float = 1.5,
        dash: str = "",
        arrow: bool = False,
    ) -> None:
        """A line through points; ``arrow`` puts a head at its end."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f" stroke-dasharray='{dash}'" if dash else ""
        self._parts.append(
            f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='{width:g}'{dashed} "
            "stroke-linejoin='round'/>"
        )
        if arrow:
            (x0, y0), (x1, y1) = points[-2:]
            angle = math.atan2(y1 - y0, x1 - x0)
            wings = [
                (x1 - 8 * math.cos(angle + turn), y1 - 8 * math.sin(angle + turn)) for turn in (0.4, -0.4)
            ]
            head = " ".join(f"{x:.1f},{y:.1f}" for x, y in [(x1, y1), *wings])
            self._parts.append(f"<polygon points='{head}' fill='{color}'/>")

    def dot(self, x: float, y: float, *, color: str = INK, radius: float = 4) -> None:
        """A point."""
        self._parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:g}' fill='{color}'/>")

    def svg(self) -> str:
        """The picture as a file."""
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width:g} {self.height:g}' "
            f"width='{self.width:g}' height='{self.height:g}' role='img'>\n"
            f"<title>{escape(self.title)}</title>\n"
            f"<rect width='{self.width:g}' height='{self.height:g}' rx='8' fill='#ffffff'/>\n"
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


class Axes:
    """A plot in a part of a drawing; an axis with ``log`` has powers of ten as marks."""

    def __init__(
        self,
        drawing: Drawing,
        place: tuple[float, float, float, float],
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        labels: tuple[str, str],
        title: str = "",
        log: str = "",
    ) -> None:
        self._drawing, self._place, self._log = drawing, place, log
        self._x, self._y = self._scaled("x", x), self._scaled("y", y)
        left, top, width, height = place
        drawing.text(left, top - 12, title, bold=True)
        drawing.box(left, top, width, height, fill="none", line=RULE, radius=0)
        for value in self._marks("x"):
            at = self.at(value, y[0])[0]
            drawing.line([(at, top + height), (at, top + height + 4)], color=GRAY, width=1)
            drawing.text(at, top + height + 18, _number(value), size=11, color=GRAY, anchor="middle")
        for value in self._marks("y"):
            at = self.at(x[0], value)[1]
            drawing.line([(left, at), (left + width, at)], color=PALE, width=1)
            drawing.text(left - 6, at + 4, _number(value), size=11, color=GRAY, anchor="end")
        drawing.text(left + width / 2, top + height + 36, labels[0], size=12, color=GRAY, anchor="middle")
        drawing.text(left - 46, top + height / 2, labels[1], size=12, color=GRAY, anchor="middle", turn=-90)

    def _scaled(self, axis: str, ends: tuple[float, float]) -> tuple[float, float]:
        return (math.log10(ends[0]), math.log10(ends[1])) if axis in self._log else ends

    def _marks(self, axis: str) -> list[float]:
        low, high = self._x if axis == "x" else self._y
        if axis in self._log:
            decades = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
            stride = max(1, len(decades) // 6)
            return [10.0**power for power in decades[::stride]]
        step = 10 ** math.floor(math.log10((high - low) / 3))
        step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
        return [k * step for k in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a value lies in the drawing, clipped to the plot."""
        left, top, width, height = self._place
        shares = []
        for axis, value, (low, high) in (("x", x, self._x), ("y", y, self._y)):
            scaled = math.log10(max(value, 1e-300)) if axis in self._log else value
            shares.append(min(1.0, max(0.0, (scaled - low) / (high - low))))
        return left + shares[0] * width, top + (1 - shares[1]) * height

    def curve(self, xs: Sequence[float], ys: Sequence[float], *, color: str, dash: str = "") -> None:
        """A line through values."""
        points = [self.at(x, y) for x, y in zip(xs, ys, strict=True)]
        self._drawing.line(points, color=color, width=2, dash=dash)

    def name(self, x: float, y: float, words: str, *, color: str, anchor: str = "start") -> None:
        """A word at a value."""
        place = self.at(x, y)
        self._drawing.text(*place, words, size=12, color=color, anchor=anchor)


def _number(value: float) -> str:
    if value and not 1e-3 < abs(value) < 1e4:
        return f"1e{round(math.log10(abs(value)))}"
    return f"{value:,.10g}"
