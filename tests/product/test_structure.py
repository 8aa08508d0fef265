"""The package as its developers see it: modules, names, errors, sizes."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import qafel
from qafel import errors

ROOT = Path(qafel.__file__).parent
MODULES = sorted(
    info.name for info in pkgutil.walk_packages([str(ROOT)], "qafel.") if "__main__" not in info.name
)
FENCE = re.compile(r"[\s>*+-]*(?:\d+[.)])?\s*(`{3,}|~{3,})\s*([^`]*)$")
LINK = re.compile(r"!?\[[^][]*\]\([^)]*\)|\[[^]]+\]: \S+|<?https?://\S+")
PACKAGES = ["qafel", *(name for name in MODULES if (ROOT.parent / name.replace(".", "/")).is_dir())]


@pytest.mark.slow
def test_every_module_can_be_imported_first_in_a_fresh_interpreter() -> None:
    """Each import happens in a fork of an interpreter that has imported only what is not qafel."""
    script = """
import importlib, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "qafel"]:
    del sys.modules[name]
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            __import__(name)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}")
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""
    command = [sys.executable, "-W", "ignore", "-c", script, *MODULES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize("name", PACKAGES)
def test_no_module_shares_its_name_with_a_public_function_of_its_package(name: str) -> None:
    package = importlib.import_module(name)
    children = {child.rpartition(".")[2] for child in MODULES if child.rpartition(".")[0] == name}
    public = {key for key, value in vars(package).items() if not isinstance(value, ModuleType)}
    assert not children & public


def test_every_error_is_exported_and_stands_in_the_tree() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, BaseException)]
    assert {kind.__name__ for kind in kinds} <= set(qafel.__all__)
    assert all(kind.__name__ in (errors.__doc__ or "") for kind in kinds)
    for name in MODULES:
        tree = ast.parse(_path(name).read_text(encoding="utf-8"))
        defined = [n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name.endswith("Error")]
        assert name == "qafel.errors" or not defined, name


@pytest.mark.parametrize("name", MODULES)
def test_files_and_functions_have_a_size_that_one_can_read(name: str) -> None:
    """At most 350 lines a file; at most 60 a function, kernels excepted."""
    text = _path(name).read_text(encoding="utf-8")
    assert text.count("\n") <= 350
    if "import njit" in text or "numba.extending" in text:
        return
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, functions):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines that can be wrapped, and their numbers: no tables, no code, no line that is a link alone."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if mark is not None and not fence:
            fence = mark[1]
        elif mark is not None and mark[1].startswith(fence) and not mark[2]:
            fence = ""
        elif not (fence or mark or line.lstrip().startswith("|")):
            rest = LINK.sub("", LINK.sub("", line))  # a badge is an image in a link
            if re.search(r"\w", rest):
                yield number, line


@pytest.mark.skipif(not (ROOT.parents[1] / ".git").exists(), reason="git knows which files are the project's")
def test_prose_in_markdown_is_at_most_100_columns_wide() -> None:
    root = ROOT.parents[1]
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    pages = [root / name for name in names if name and (root / name).exists()]
    assert len(pages) > 20
    wide = [
        f"{page.relative_to(root)}:{number}: {len(line)}"
        for page in pages
        for number, line in prose(page.read_text(encoding="utf-8"))
        if len(line) > 100
    ]
    assert not wide, "\n".join(wide)


def _path(name: str) -> Path:
    path = ROOT.parent / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_only_one_module_imports_nats_py() -> None:
    files = [
        path for path in ROOT.rglob("*.py") if re.search(r"^\s*(import|from) nats\b", path.read_text(), re.M)
    ]
    assert [path.relative_to(ROOT).as_posix() for path in files] == ["federation/nats.py"]


def test_everything_that_is_stored_or_sent_has_a_magic_of_its_own() -> None:
    texts = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]
    magics = [
        magic for text in texts for magic in re.findall(r'MAGIC(?:: ClassVar\[bytes\])? = b"(\w+)"', text)
    ]
    assert len(magics) > 15
    assert len(set(magics)) == len(magics)
