"""``qafel theory``: which quantizers may I use, what does each cost me, and which rates are allowed."""

from dataclasses import asdict
from typing import Annotated

import typer

from qafel import theory
from qafel.cli import show
from qafel.cli.quantizers import Size, Specs, specs_or_all
from qafel.config import DEFAULT_QUANTIZER
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
    str, typer.Option("--local-rates", help="η_ℓ of every local step, as 0.1,0.05,…; default 1/(K√(TP)).")
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
    local_rates: str,
    server_rate: float | None,
    staleness: int,
) -> theory.Setting:
    if min(steps, buffer_size, local_steps) < 1:
        raise ConfigError("steps, buffer size and local steps must be at least 1")
    local, server = theory.complexity_rates(steps, local_steps, buffer_size)
    try:
        rates = (
            tuple(float(rate) for rate in local_rates.split(",")) if local_rates else (local,) * local_steps
        )
    except ValueError as error:
        raise ConfigError(
            f"local rates must be numbers with commas between them, not {local_rates!r}"
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
        max_staleness=theory.max_staleness(staleness, buffer_size),
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
    local_rates: LocalRates = "",
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
        f"At d = {size:,}, T = {steps:,}, K = {buffer_size}: bound × FedBuff's, largest local rate",
        [
            "spec",
            "bytes",
            "ω",
            "δ",
            "at clients",
            "bound ×",
            "max η_ℓ",
            "at the server",
            "bound ×",
            "max η_ℓ",
        ],
        (
            [
                row.spec,
                f"{row.payload_bytes:,}",
                show.number(row.omega),
                show.number(row.delta),
                show.yes(row.client),
                show.number(row.client_bound) if row.client else "biased",
                show.number(row.client_rate) if row.client else "–",
                show.yes(row.server),
                show.number(row.server_bound) if row.server else "δ ≤ 0",
                show.number(row.server_rate) if row.server else "–",
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
    local_rates: LocalRates = "",
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
    if size < 1:
        raise ConfigError(f"size must be at least 1, not {size}")
    if not q_c.unbiased:
        raise ConfigError(
            f"the theory needs an unbiased client quantizer; induced:{q_c.spec}+{DEFAULT_QUANTIZER} is one"
        )
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
        f"The learning-rate condition {verdict}: {shown['condition']} ≤ 1 is needed. "
        f"Largest η_ℓ with this η_g: {shown['largest_local_rate']}; "
        f"largest η_g with these η_ℓ: {shown['largest_server_rate']}.\n"
        f"The paper's simpler condition: η_g ≤ {shown['simple_server_rate']} and "
        f"η_ℓ ≤ {shown['simple_local_rate']}."
    )
