"""The built documentation site: whole, without dead links, usable without a network (make docs)."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
PAGES = sorted(path for path in SITE.rglob("*.html") if path.name != "404.html")  # it has absolute links


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        for name in ("id", "name"):
            if known.get(name):
                self.anchors.add(str(known[name]))
        if tag == "a" and known.get("href"):
            self.targets.append(str(known["href"]))
        for name in ("src", "href"):
            if tag in ("img", "script", "link", "iframe") and known.get(name):
                self.loaded.append(str(known[name]))
                self.targets.append(str(known[name]))


def read(path: Path) -> _Links:
    links = _Links()
    links.feed(path.read_text(encoding="utf-8"))
    return links


def test_the_site_has_a_page_for_every_document() -> None:
    names = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert names <= {path.stem for path in SITE.glob("*.html")}
    assert {"commands", "settings", "metrics", "python"} <= {
        path.stem for path in (SITE / "reference").iterdir()
    }
    assert (SITE / "search" / "search_index.json").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(SITE)))
def test_no_link_is_dead_and_nothing_is_loaded_from_elsewhere(page: Path) -> None:
    links = read(page)
    for target in links.targets:
        parts = urlsplit(target)
        if parts.scheme in ("http", "https", "mailto", "data", "javascript"):
            assert target not in links.loaded or parts.scheme == "data", target
            continue
        path = (page.parent / unquote(parts.path)) if parts.path else page
        path = path / "index.html" if path.is_dir() else path
        assert path.exists(), target
        if parts.fragment and path.suffix == ".html" and not parts.fragment.startswith("__"):
            assert unquote(parts.fragment) in read(path).anchors, target


def test_the_reference_has_every_command_setting_and_public_name() -> None:
    import qafel
    from qafel.sim import Settings

    commands, settings, python = (
        (SITE / "reference" / f"{name}.html").read_text() for name in ("commands", "settings", "python")
    )
    for name in ("qafel run", "qafel sweep", "qafel dashboard", "qafel keys new", "qafel bench codec"):
        assert re.search(rf"<h2[^>]*>{name}<", commands), name
    for name in Settings.__struct_fields__:
        assert f"<code>{name}</code>" in settings
    for name in qafel.__all__:
        assert name.startswith("__") or f'id="qafel.{name}"' in python, name
