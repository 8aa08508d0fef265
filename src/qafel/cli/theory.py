"""``qafel theory``: which quantizers may I use, what does each cost me, and which rates are allowed."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import typer
from typer import Option

from qafel import theory
from qafel.cli import show
from qafel.cli.quantizers import Size, Specs, check_size, specs_or_all
from qafel.config import DEFAULT_QUANTIZER, remedy, unbiased_one
from qafel.errors import ConfigError
from qafel.quantizers import Quantizer, quantizer
from qafel.tables import Columns

app = typer.Typer(help="The paper's convergence theory, as numbers.", no_args_is_help=True)

COSTS: Columns = {
    "spec": "{.spec}",
    "bytes": "{.payload_bytes:,}",
    "ω": lambda row: show.number(row.omega),
    "δ": lambda row: show.number(row.delta),
    "clients: bound ×": lambda row: (
        show.number(row.client_bound) if row.client else "rate" if row.unbiased else "biased"
    ),
    "clients: max η_ℓ": lambda row: show.number(row.client_max_rate) if row.unbiased else "–",
    "server: bound ×": lambda row: (
        show.number(row.server_bound) if row.server else "rate" if row.delta > 0 else "δ ≤ 0"
    ),
    "server: max η_ℓ": lambda row: show.number(row.server_max_rate) if row.delta > 0 else "–",
}


class Chosen(NamedTuple):
    """The setting that the options describe."""

    setting: theory.Setting
    staleness: int
    """τ_max,1; the setting has τ_max,K."""


def _setting(
    smoothness: Annotated[float, Option("-L", "--smoothness", help="L of the loss.")] = 1.0,
    variance: Annotated[float, Option(help="σ²: of a stochastic gradient.")] = 1.0,
    gradient_bound: Annotated[float, Option("-G", "--gradient-bound", help="G: bound on ‖∇F‖².")] = 1.0,
    gap: Annotated[float, Option(help="F*: f(x⁰) − f*.")] = 1.0,
    steps: Annotated[int, Option("-T", "--steps", help="T: server steps.")] = 10_000,
    buffer_size: Annotated[int, Option("-K", "--buffer-size", help="K.")] = 10,
    local_steps: Annotated[
        int, Option("-P", "--local-steps", help="P; ignored when local rates are given.")
    ] = 1,
    local_rates: Annotated[
        str | None, Option(help="η_ℓ of every local step, as 0.1,0.05,…; default 1/(K√(TP)).")
    ] = None,
    server_rate: Annotated[float | None, Option(help="η_g; default K.")] = None,
    staleness: Annotated[int, Option(help="τ_max,1: the largest staleness of an update when K = 1.")] = 100,
) -> Chosen:
    if not (1 <= steps <= 10**9 and 1 <= buffer_size <= 10**9 and 1 <= local_steps <= 10**6):
        raise ConfigError("--steps and --buffer-size must be from 1 to a billion, --local-steps to a million")
    if not 0 <= staleness <= 10**9:
        raise ConfigError(f"--staleness must be from 0 to a billion, got {staleness}")
    local, server = theory.complexity_rates(steps, local_steps, buffer_size)
    try:
        rates = (local,) * local_steps if local_rates is None else tuple(map(float, local_rates.split(",")))
    except ValueError as error:
        raise ConfigError(
            f"--local-rates must be numbers with commas between them, got {local_rates!r}"
        ) from error
    setting = theory.Setting(
        smoothness=smoothness,
        variance=variance,
        gradient_bound=gradient_bound,
        gap=gap,
        steps=steps,
        buffer_size=buffer_size,
        rates=rates,
        server_rate=server if server_rate is None else server_rate,
        max_staleness=theory.buffered_staleness(staleness, buffer_size),
    )
    return Chosen(setting, staleness)


def _with_setting(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``chosen`` of a command by the options of ``_setting``."""
    options = inspect.signature(_setting).parameters
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, own in inspect.signature(command).parameters.items()
        for parameter in (options.values() if name == "chosen" else [own])
    ]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        chosen = _setting(**{name: values.pop(name) for name in options})
        command(chosen=chosen, **values)

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options


@app.command("quantizers")
@_with_setting
def quantizers_command(
    specs: Specs = None,
    size: Size = 29_282,
    *,
    chosen: Chosen,
    json: show.Json = False,
) -> None:
    """Which quantizers may I use, and what does each cost me?

    Example: qafel theory quantizers --size 29282 -T 3000 -K 10
    """
    s = chosen.setting
    rows = theory.costs(s, size, specs_or_all(specs, size))
    if json:
        show.json({"setting": asdict(s), "size": size, "quantizers": [asdict(row) for row in rows]})
        return
    where = f"At d = {size:,}, T = {s.steps:,}, K = {s.buffer_size}, η_ℓ = {show.number(max(s.rates))}"
    what = "bound in units of FedBuff's (rate: this η_ℓ is too large) and the largest η_ℓ"
    show.records(f"{where}: {what}", COSTS, rows)


@app.command("bound")
@_with_setting
def bound_command(
    client: Annotated[str, Option(help="Client quantizer.")] = DEFAULT_QUANTIZER,
    server: Annotated[str, Option(help="Server quantizer.")] = DEFAULT_QUANTIZER,
    size: Size = 29_282,
    *,
    chosen: Chosen,
    json: show.Json = False,
) -> None:
    """The bound on the mean squared gradient norm, term by term, beside FedBuff's; and the rates it allows.

    Example: qafel theory bound --client qsgd:4,bucket=256,norm=max --server topk:0.1 -T 3000
    """
    q_c, q_s = quantizer(client), quantizer(server)
    _check(q_c, q_s, size)
    mine = chosen.setting.with_quantizers(q_c, q_s, size)
    terms = {
        "theorem": asdict(theory.bound(mine)),
        "corollary": asdict(theory.bound(mine, limit=True)),
        "FedBuff": asdict(theory.bound(chosen.setting)),
        "order": theory.complexity(mine, chosen.staleness),
    }
    rates = _rates(mine)
    if json:
        totals = {name: sum(column.values()) for name, column in terms.items()}
        show.json({"setting": asdict(mine), "terms": terms, "totals": totals, "rates": rates})
        return
    show.table(
        f"Bound on the mean squared gradient norm: client {q_c.spec}, server {q_s.spec}",
        ["term", "theorem", "corollary (φ at its limit)", "FedBuff", "order (no constants)"],
        [
            *(
                [name.replace("_", " "), *(show.number(column[name]) for column in terms.values())]
                for name in terms["theorem"]
            ),
            ["total", *(show.number(sum(column.values())) for column in terms.values())],
        ],
    )
    _print_rates(rates)


def _check(client: Quantizer, server: Quantizer, size: int) -> None:
    check_size(size)
    if server.delta(size) <= 0:
        raise ConfigError(
            f"the theory needs a server quantizer with delta > 0, and {server.spec} has "
            f"{server.delta(size):.3g} at {size:,} coordinates; use {remedy(server, size)}"
        )
    if not client.unbiased:
        raise ConfigError(f"the theory needs an unbiased client quantizer; {unbiased_one(client)} is one")


def _rates(s: theory.Setting) -> dict[str, float]:
    simple_local, simple_server = theory.simple_rates(s)
    return {
        "alpha": theory.alpha(s.rates),
        "beta": theory.beta(s.rates),
        "phi": theory.phi(s.steps, s.server_delta),
        "max_staleness_K": float(s.max_staleness),
        "condition": theory.condition(s),
        "largest_local_rate": theory.largest_local_rate(s),
        "largest_server_rate": theory.largest_server_rate(s),
        "simple_local_rate": simple_local,
        "simple_server_rate": simple_server,
    }


def _print_rates(rates: dict[str, float]) -> None:
    shown = {name: show.number(value) for name, value in rates.items()}
    holds = "holds" if rates["condition"] <= 1 else "is violated"
    show.console.print(
        f"\nα_P = {shown['alpha']}, β_P = {shown['beta']}, φ(T) = {shown['phi']}, "
        f"τ_max,K = {rates['max_staleness_K']:.0f}\n"
        f"The learning-rate condition {holds}: {shown['condition']}, where at most 1 is allowed. "
        f"Largest η_ℓ with this η_g: {shown['largest_local_rate']}; "
        f"largest η_g with these η_ℓ: {shown['largest_server_rate']}.\n"
        f"The paper's simpler condition: η_g ≤ {shown['simple_server_rate']} and "
        f"η_ℓ ≤ {shown['simple_local_rate']}."
    )
