"""``qafel theory``: which quantizers may I use, what does each cost me, and which rates are allowed."""

from dataclasses import asdict
from typing import Annotated

import typer

from qafel import theory
from qafel.cli import show
from qafel.cli.quantizers import Size, Specs, check_size, specs_or_all
from qafel.config import DEFAULT_QUANTIZER, remedy, unbiased_one
from qafel.errors import ConfigError
from qafel.quantizers import quantizer

app = typer.Typer(help="The paper's convergence theory, as numbers.", no_args_is_help=True)

Smoothness = Annotated[float, typer.Option("-L", "--smoothness", help="L of the loss.")]
Variance = Annotated[float, typer.Option("--variance", help="σ²: of a stochastic gradient.")]
GradientBound = Annotated[float, typer.Option("-G", "--gradient-bound", help="G: bound on ‖∇F‖².")]
Gap = Annotated[float, typer.Option("--gap", help="F*: f(x⁰) − f*.")]
Steps = Annotated[int, typer.Option("-T", "--steps", help="T: server steps.")]
BufferSize = Annotated[int, typer.Option("-K", "--buffer-size", help="K.")]
LocalSteps = Annotated[
    int, typer.Option("-P", "--local-steps", help="P; ignored when local rates are given.")
]
LocalRates = Annotated[
    str | None,
    typer.Option("--local-rates", help="η_ℓ of every local step, as 0.1,0.05,…; default 1/(K√(TP))."),
]
ServerRate = Annotated[float | None, typer.Option("--server-rate", help="η_g; default K.")]
Staleness = Annotated[
    int, typer.Option("--staleness", help="τ_max,1: the most server steps an update is late when K = 1.")
]
ClientSpec = Annotated[str, typer.Option("--client", help="Client quantizer.")]
ServerSpec = Annotated[str, typer.Option("--server", help="Server quantizer.")]


def _setting(
    smoothness: float,
    variance: float,
    gradient_bound: float,
    gap: float,
    steps: int,
    buffer_size: int,
    local_steps: int,
    local_rates: str | None,
    server_rate: float | None,
    staleness: int,
) -> theory.Setting:
    if not (1 <= steps <= 10**9 and 1 <= buffer_size <= 10**9 and 1 <= local_steps <= 10**6):
        raise ConfigError("--steps and --buffer-size must be from 1 to a billion, --local-steps to a million")
    if not 0 <= staleness <= 10**9:
        raise ConfigError(f"--staleness must be from 0 to a billion, not {staleness}")
    local, server = theory.complexity_rates(steps, local_steps, buffer_size)
    try:
        rates = (local,) * local_steps if local_rates is None else tuple(map(float, local_rates.split(",")))
    except ValueError as error:
        raise ConfigError(
            f"--local-rates must be numbers with commas between them, not {local_rates!r}"
        ) from error
    return theory.Setting(
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


@app.command("quantizers")
def quantizers_command(
    specs: Specs = None,
    size: Size = 29_282,
    smoothness: Smoothness = 1.0,
    variance: Variance = 1.0,
    gradient_bound: GradientBound = 1.0,
    gap: Gap = 1.0,
    steps: Steps = 10_000,
    buffer_size: BufferSize = 10,
    local_steps: LocalSteps = 1,
    local_rates: LocalRates = None,
    server_rate: ServerRate = None,
    staleness: Staleness = 100,
    json: show.Json = False,
) -> None:
    """Which quantizers may I use, and what does each cost me?

    Example: qafel theory quantizers --size 29282 -T 3000 -K 10
    """
    s = _setting(
        smoothness,
        variance,
        gradient_bound,
        gap,
        steps,
        buffer_size,
        local_steps,
        local_rates,
        server_rate,
        staleness,
    )
    rows = theory.costs(s, size, specs_or_all(specs, size))
    if json:
        show.json({"setting": asdict(s), "size": size, "quantizers": [asdict(row) for row in rows]})
        return
    show.table(
        f"At d = {size:,}, T = {steps:,}, K = {buffer_size}, η_ℓ = {show.number(max(s.rates))}: bound in "
        "units of FedBuff's (rate: this η_ℓ is too large) and the largest η_ℓ",
        [
            "spec",
            "bytes",
            "ω",
            "δ",
            "clients: bound ×",
            "clients: max η_ℓ",
            "server: bound ×",
            "server: max η_ℓ",
        ],
        (
            [
                row.spec,
                f"{row.payload_bytes:,}",
                show.number(row.omega),
                show.number(row.delta),
                show.number(row.client_bound) if row.client else "rate" if row.unbiased else "biased",
                show.number(row.client_max_rate) if row.unbiased else "–",
                show.number(row.server_bound) if row.server else "rate" if row.delta > 0 else "δ ≤ 0",
                show.number(row.server_max_rate) if row.delta > 0 else "–",
            ]
            for row in rows
        ),
    )


@app.command("bound")
def bound_command(
    client: ClientSpec = DEFAULT_QUANTIZER,
    server: ServerSpec = DEFAULT_QUANTIZER,
    size: Size = 29_282,
    smoothness: Smoothness = 1.0,
    variance: Variance = 1.0,
    gradient_bound: GradientBound = 1.0,
    gap: Gap = 1.0,
    steps: Steps = 10_000,
    buffer_size: BufferSize = 10,
    local_steps: LocalSteps = 1,
    local_rates: LocalRates = None,
    server_rate: ServerRate = None,
    staleness: Staleness = 100,
    json: show.Json = False,
) -> None:
    """The bound on the mean squared gradient norm, term by term, beside FedBuff's; and the rates it allows.

    Example: qafel theory bound --client qsgd:4,bucket=256,norm=max --server topk:0.1 -T 3000
    """
    s = _setting(
        smoothness,
        variance,
        gradient_bound,
        gap,
        steps,
        buffer_size,
        local_steps,
        local_rates,
        server_rate,
        staleness,
    )
    q_c, q_s = quantizer(client), quantizer(server)
    check_size(size)
    if q_s.delta(size) <= 0:
        raise ConfigError(
            f"the theory needs a server quantizer with delta > 0, and {q_s.spec} has "
            f"{q_s.delta(size):.3g} at {size:,} coordinates; use {remedy(q_s, size)}"
        )
    if not q_c.unbiased:
        raise ConfigError(f"the theory needs an unbiased client quantizer; {unbiased_one(q_c)} is one")
    mine = s.with_quantizers(q_c, q_s, size)
    terms = {
        "theorem": asdict(theory.bound(mine)),
        "corollary": asdict(theory.bound(mine, limit=True)),
        "FedBuff": asdict(theory.bound(s)),
        "order": theory.complexity(mine, staleness),
    }
    rates = {
        "alpha": theory.alpha(s.rates),
        "beta": theory.beta(s.rates),
        "phi": theory.phi(s.steps, mine.server_delta, unbiased=mine.server_unbiased),
        "max_staleness_K": float(s.max_staleness),
        "condition": theory.condition(mine),
        "largest_local_rate": theory.largest_local_rate(mine),
        "largest_server_rate": theory.largest_server_rate(mine),
        "simple_local_rate": theory.simple_rates(mine)[0],
        "simple_server_rate": theory.simple_rates(mine)[1],
    }
    if json:
        totals = {name: sum(column.values()) for name, column in terms.items()}
        show.json({"setting": asdict(mine), "terms": terms, "totals": totals, "rates": rates})
        return
    names = list(terms["theorem"])
    show.table(
        f"Bound on the mean squared gradient norm: client {q_c.spec}, server {q_s.spec}",
        ["term", "theorem", "corollary (φ at its limit)", "FedBuff", "order (no constants)"],
        [
            *(
                [name.replace("_", " "), *(show.number(column[name]) for column in terms.values())]
                for name in names
            ),
            ["total", *(show.number(sum(column.values())) for column in terms.values())],
        ],
    )
    shown = {name: show.number(value) for name, value in rates.items()}
    verdict = "holds" if rates["condition"] <= 1 else "is violated"
    show.console.print(
        f"\nα_P = {shown['alpha']}, β_P = {shown['beta']}, φ(T) = {shown['phi']}, "
        f"τ_max,K = {s.max_staleness}\n"
        f"The learning-rate condition {verdict}: {shown['condition']}, where at most 1 is allowed. "
        f"Largest η_ℓ with this η_g: {shown['largest_local_rate']}; "
        f"largest η_g with these η_ℓ: {shown['largest_server_rate']}.\n"
        f"The paper's simpler condition: η_g ≤ {shown['simple_server_rate']} and "
        f"η_ℓ ≤ {shown['simple_local_rate']}."
    )
