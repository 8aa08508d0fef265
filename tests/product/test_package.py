"""The package as others see it: its public names, its README, its rooms."""

import re
from pathlib import Path

import pytest

import qafel
from qafel.quantizers import _base

ROOT = Path(__file__).parents[2]


def test_public_names_are_sorted_and_exist() -> None:
    assert qafel.__all__ == sorted(qafel.__all__)
    assert all(hasattr(qafel, name) for name in qafel.__all__)


def test_version_is_the_one_in_pyproject() -> None:
    assert f'version = "{qafel.__version__}"' in (ROOT / "pyproject.toml").read_text()


WITH_A_BROKER = {"federation.md"}
"""Pages whose example needs a broker: tests/federation runs it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["README.md", *sorted({p.name for p in (ROOT / "docs").glob("*.md")} - WITH_A_BROKER)]
)
def test_python_examples_run_and_print_what_the_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_base, "_registry", dict(_base._registry))
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", path.read_text(), re.DOTALL)
    if page == "README.md":
        assert blocks
        assert len([line for line in blocks[0][0].splitlines() if line.strip()]) <= 15
    names = {"__name__": "example"}
    for block, printed in blocks:  # those of a page belong together
        capsys.readouterr()
        exec(compile(block, page, "exec"), names)
        assert not printed or capsys.readouterr().out == printed
    assert page != "tutorial.md" or sum(bool(printed) for _, printed in blocks) >= 4
    _base._parse.cache_clear()


def test_links_in_the_docs_lead_somewhere() -> None:
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), (path.name, target)


def test_layout_flattens_and_unflattens() -> None:
    import numpy as np

    layout = qafel.Layout.of({"a": (2, 3), "b": (4,)})
    arrays = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float32)}
    flat = layout.flatten(arrays)
    assert flat.ctypes.data % 64 == 0
    assert all(np.array_equal(layout.unflatten(flat)[name], arrays[name]) for name in arrays)
    for wrong in ({"a": arrays["a"]}, {**arrays, "b": arrays["a"]}):
        with pytest.raises(qafel.VectorError):
            layout.flatten(wrong)
    with pytest.raises(qafel.ConfigError, match="must differ"):
        qafel.Layout((layout.tensors[0], layout.tensors[0]))
