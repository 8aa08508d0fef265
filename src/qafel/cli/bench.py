"""``qafel bench``: timings in units of a yardstick from the same run."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from qafel.cli import show
from qafel.cli.quantizers import check_size
from qafel.errors import ConfigError
from qafel.records import provenance

app = typer.Typer(help="Measure speed, as ratios to a yardstick in the same run.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep ``bench`` a group while it has one command."""


@app.command("codec")
def codec(
    specs: Annotated[
        list[str] | None, typer.Argument(help="Specs to time; a selection when left out.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option("--size", "-d", help="Coordinates; may be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds; a ratio is the median over them.")] = 15,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the JSON to this file.")] = None,
    json: show.Json = False,
) -> None:
    """Encode and decode-and-add on one thread, in units of np.copyto of the same array.

    Example: qafel bench codec qsgd:4,bucket=256,norm=max -d 1000000 --json
    """
    from qafel.experiments import bench_codec
    from qafel.quantizers import quantizer

    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {rounds}")
    for d in size or ():
        check_size(d)
    if out:
        show.out_folder(out.parent)
        if out.is_dir():
            raise ConfigError(f"--out must be a file, and {out} is a folder")
    chosen, sizes = (
        [quantizer(spec).spec for spec in specs or bench_codec.SPECS],
        size or list(bench_codec.SIZES),
    )
    rows = []
    with show.progress(quiet=json) as bar:
        task = bar.add_task("timing", total=len(chosen) * len(sizes))
        for row in bench_codec.bench_codec(sizes, chosen, rounds):
            rows.append(row)
            bar.update(task, advance=1, description=f"{row.spec} at {row.size:,}")
    answer = {
        "yardstick": "np.copyto",
        "threads": 1,
        "rounds": rounds,
        **provenance("qafel", "numpy", "numba"),
        "rows": rows,
    }
    if out:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(answer), indent=1) + b"\n")
    if json:
        show.json(answer)
        return
    show.table(
        "Codecs on one thread; × = times np.copyto of the same array in the same rounds",
        ["spec", "d", "bits/coord", "NMSE", "copy µs", "encode ×", "decode-and-add ×"],
        (
            [
                row.spec,
                f"{row.size:,}",
                f"{row.bits:.2f}",
                show.number(row.nmse, 2),
                show.number(row.copy_us),
                f"{row.encode_ratio:.2f}",
                f"{row.decode_add_ratio:.2f}",
            ]
            for row in rows
        ),
    )
