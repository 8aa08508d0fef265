"""``qafel settings``."""

from typing import Annotated

import msgspec
from typer import Argument

from qafel.cli import show
from qafel.cli.complete import known_values, setting_completions


def settings(
    name: Annotated[
        str | None,
        Argument(help="A setting; default: all of them.", autocompletion=setting_completions),
    ] = None,
    json: show.Json = False,
) -> None:
    """List every setting with its default and its meaning, or explain one.

    Example: qafel settings local_rate
    """
    from qafel.federation.plan import Plan
    from qafel.sim.settings import Settings
    from qafel.tasks.described import describe
    from qafel.tasks.values import unknown_setting

    known = {one.name: one for one in describe(Settings)}
    known |= {one.name: one for one in describe(Plan) if one.name not in known}
    if name is not None and name not in known:
        raise unknown_setting(name, known)
    chosen = list(known.values()) if name is None else [known[name]]
    if json:
        rows = [msgspec.structs.asdict(one) for one in chosen]
        show.json(rows if name is None else rows[0])
        return
    group = ""
    for one in chosen:
        if one.group != group:
            group = one.group
            show.console.print(f"{'' if one is chosen[0] else chr(10)}{group}", style="bold", highlight=False)
        default = "" if one.default is None else f" = {one.default}"
        show.console.print(f"  {one.name}{default}", style="green", highlight=False, markup=False)
        show.paragraph(one.meaning.replace("``", ""), 6)
    if name is not None and (values := known_values(name)):
        show.paragraph(f"For example {', '.join(values)}.", 6)
    if name is None:
        show.line()
        show.paragraph(
            "Use them as --set NAME=VALUE, in a TOML file, or as keywords of qafel.sim.simulate().", 0
        )
