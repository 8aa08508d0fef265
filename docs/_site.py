"""Hooks of the documentation site: pages that are made from the code, and links that leave ``docs/``."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURES = (".png", ".svg")
BESIDE = "results|src|examples|deploy|tests|README|CONTRIBUTING|CHANGELOG"
OUTSIDE = re.compile(rf"\]\((?:\.\./)+((?:{BESIDE})[^)#]*)(#[^)]*)?\)")
INCLUDED = re.compile(r"^\[[^]]*\]\((?:\.\./)+(results/[^)]*)\.md\)$", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures of ``results/`` and the generated pages."""
    from mkdocs.structure.files import File

    for path in sorted((ROOT / "results").rglob("*")):
        if path.suffix in PICTURES:
            name = str(path.relative_to(ROOT))
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Include the pages of results that a line links to; point other links to files beside ``docs/`` to
    the site's copy of a picture, or to the repository.
    """
    del files
    markdown = INCLUDED.sub(_included, markdown)

    def target(match: re.Match[str]) -> str:
        path = match[1]
        depth = "../" * page.file.src_uri.count("/")
        if path.endswith(PICTURES):
            return f"]({depth}{path})"
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({config['extra']['repository']}/{kind}/main/{path}{match[2] or ''})"

    return OUTSIDE.sub(target, markdown)


def _included(match: re.Match[str]) -> str:
    """The page of a study, with its pictures."""
    path = ROOT / f"{match[1]}.md"
    folder = path.parent.relative_to(ROOT)
    return re.sub(r"\]\(([^/)]+)\)", rf"](../{folder}/\1)", path.read_text(encoding="utf-8"))


def pages() -> dict[str, str]:
    """The reference, from the code."""
    return {"commands": _commands(), "settings": _settings(), "metrics": _metrics(), "python": _python()}


def _commands() -> str:
    import typer.main

    from qafel.cli import app

    group: Any = typer.main.get_command(app)
    text = ["# Commands\n", "Every command has `--json` and `--help`.\n"]

    def add(name: str, command: Any) -> None:
        if hasattr(command, "commands"):
            for child, one in command.commands.items():
                add(f"{name} {child}", one)
            return
        words, _, example = (command.help or "").partition("Example: ")
        text.append(f"## {name}\n\n{' '.join(words.split())}\n")
        if example:
            text.append(f"```sh\n{' '.join(example.split())}\n```\n")
        rows = [
            (_shown(param), " ".join((getattr(param, "help", "") or "").split())) for param in command.params
        ]
        rows = [(shown, words) for shown, words in rows if shown not in ("`--help`", "`--json`")]
        if rows:
            text.append("| | |\n|---|---|\n" + "\n".join(f"| {a} | {_cell(b)} |" for a, b in rows) + "\n")

    for name, command in group.commands.items():
        add(f"qafel {name}", command)
    return "\n".join(text)


def _shown(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.make_metavar() if not param.metavar else param.metavar}`"
    return f"`{', '.join(param.opts)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _settings() -> str:
    from qafel.sim import Settings
    from qafel.tasks.described import describe

    text = ["# Settings\n", "What `qafel run --set NAME=VALUE` and `simulate(NAME=VALUE)` take.\n"]
    text.append("| setting | default | |\n|---|---|---|")
    text += [
        f"| `{one.name}` | `{one.default}` | {_cell(' '.join(one.meaning.split()))} |"
        for one in describe(Settings)
    ]
    return "\n".join(text) + "\n"


def _metrics() -> str:
    import ast

    text = ["# Recorded numbers\n"]
    source = (ROOT / "src" / "qafel" / "runs" / "summary.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name in ("Point", "Summary"):
            file = "metrics.jsonl, one line per evaluation" if node.name == "Point" else "summary.json"
            text.append(f"## {file}\n\n| field | type | |\n|---|---|---|")
            for this, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(this, ast.AnnAssign):
                    doc = after.value.value if _is_text(after) else ""  # type: ignore[union-attr]
                    kind = ast.unparse(this.annotation).replace("|", "\\|")
                    text.append(
                        f"| `{ast.unparse(this.target)}` | `{kind}` | {_cell(' '.join(doc.split()))} |"
                    )
            text.append("")
    events = (ROOT / "src" / "qafel" / "runs" / "events.py").read_text(encoding="utf-8")
    lines = (ast.get_docstring(ast.parse(events)) or "").splitlines()
    text.append("## events.jsonl, with `--events`\n\n```")
    text += [line.strip() for line in lines if line.strip().startswith("[")]
    return "\n".join(text) + "\n```\n"


def _is_text(node: Any) -> bool:
    import ast

    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _python() -> str:
    import qafel

    core = [f"qafel.{name}" for name in qafel.__all__ if not name.startswith("_")]
    sections = {
        "Simulating": [f"qafel.sim.{name}" for name in ("simulate", "sweep", "compare", "resume")],
        "The core": core,
        "Federations": ["qafel.federation.serve", "qafel.federation.join"],
        "The page": ["qafel.dashboard.serve", "qafel.dashboard.report"],
    }
    text = ["# Python\n"]
    for title, names in sections.items():
        blocks = [f"::: {name}\n    options:\n      heading_level: 3\n" for name in names]
        text += [f"## {title}\n", *blocks]
    return "\n".join(text)
