"""The paper's accounting gives its tables to the byte, and a real frame is smaller."""

import numpy as np
import pytest

from qafel import Client, ConfigError, Job, quantizer
from qafel.quantizers import Quantizer
from qafel.reproduce.cells import paper_bytes
from qafel.tasks.cnn import LAYOUT as CNN
from qafel.vectors import Vector
from specs import deltas, heavy_tailed

pytestmark = pytest.mark.slow


def test_the_five_sizes_of_the_papers_tables() -> None:
    specs = ("identity", "affine:8", "affine:4", "affine:2", "topk:0.1")
    assert [paper_bytes(spec) for spec in specs] == [117_128, 29_924, 15_380, 8_108, 15_404]


def test_the_papers_cnn_has_its_parameters() -> None:
    assert CNN.size == 29_282
    assert sum(t.size for t in CNN.tensors if len(t.shape) > 1) == 29_088
    assert sum(len(t.shape) > 1 for t in CNN.tensors) == 5


@pytest.mark.parametrize("spec", ["qsgd:4", "qsgd:4,bucket=256,norm=max"])
def test_a_real_four_bit_frame_of_the_cnn_is_smaller_than_the_papers(spec: str) -> None:
    job = Job(size=CNN.size, client_quantizer=spec, layout=CNN)
    client = Client(job, np.zeros(CNN.size, np.float32), client=0)
    assert len(client.train(lambda x, task: heavy_tailed(CNN.size))) < 15_380


def test_real_affine_frames_are_close_to_the_papers_formula() -> None:
    for bits in (2, 4, 8):
        job = Job(size=CNN.size, server_quantizer=f"affine:{bits}", layout=CNN)
        _, server = job.quantizers()
        assert abs(server.max_bytes(CNN.size) - paper_bytes(f"affine:{bits}")) < 64


def test_the_paper_has_no_size_for_other_quantizers() -> None:
    with pytest.raises(ConfigError, match="the paper has no size"):
        paper_bytes("qsgd:4")


DELTAS = deltas()
CLIENTS = [x for name, x in DELTAS.items() if name.startswith("client")]


def error(q: Quantizer, x: Vector, seeds: int = 4) -> float:
    errors = [np.square(q.decode(q.encode(x, seed), x.size) - x).sum() for seed in range(seeds)]
    return float(np.mean(errors) / np.square(x).sum())


def test_a_dithered_delta_takes_7300_bytes_at_the_error_of_four_bit_qsgd() -> None:
    reference = quantizer("qsgd:4,bucket=512,norm=max")
    sizes = []
    for x in CLIENTS:
        q = quantizer(f"dither:nmse={error(reference, x):.6f}", CNN)
        assert error(q, x) <= 1.02 * error(reference, x)
        sizes.append(len(q.encode(x, 0)))
    assert np.mean(sizes) <= 7300


def test_a_dead_zone_takes_half_the_bytes_of_four_bit_affine_at_its_error() -> None:
    reference, sizes = quantizer("affine:4", CNN), []
    for x in DELTAS.values():
        q = quantizer(f"deadzone:nmse={error(reference, x, 1):.6f}", CNN)
        assert error(q, x, 1) <= 1.02 * error(reference, x, 1)
        sizes.append((len(q.encode(x, 0)), len(reference.encode(x, 0))))
    mine, theirs = np.mean(sizes, axis=0)
    assert mine <= 7300
    assert theirs >= 15_000


def test_at_two_bits_the_dither_loses_less_than_half_of_what_eden_does() -> None:
    eden = quantizer("eden:2")
    errors = []
    for x in CLIENTS:
        bits = 2.3
        while 8 * len((q := quantizer(f"dither:bits={bits:.2f}", CNN)).encode(x, 0)) > 2 * x.size:
            bits -= 0.02
        errors.append((error(q, x), error(eden, x)))
    mine, theirs = np.mean(errors, axis=0)
    assert 2 * mine <= theirs


def test_below_one_bit_a_rotation_loses_less_than_the_dither_in_fewer_bytes() -> None:
    rotated, dither = quantizer("rotated:bits=0.4"), quantizer("dither:step=6", CNN)
    sizes, errors = (
        [np.mean([measure(q, x) for x in CLIENTS]) for q in (rotated, dither)]
        for measure in (lambda q, x: len(q.encode(x, 0)), error)
    )
    assert sizes[0] < sizes[1]
    assert 1.2 * errors[0] < errors[1]


UNBIASED = [
    "dither:step=6",
    "dither:step=0.75",
    "rotated:bits=0.45",
    "eden:1",
    "eden:2",
    "natural",
    "ternary",
]


@pytest.mark.parametrize("spec", [*UNBIASED, "qsgd:4,bucket=256,norm=max"])
def test_the_bias_on_real_deltas_is_a_thousandth_of_the_error(spec: str) -> None:
    q, seeds = quantizer(spec, CNN), 256
    assert q.unbiased
    for x in CLIENTS[::2]:
        mean, total = np.zeros(x.size), 0.0
        for seed in range(seeds):
            decoded = q.decode(q.encode(x, seed), x.size).astype(np.float64)
            mean += decoded / seeds
            total += np.square(decoded - x).sum() / seeds
        bias = np.square(mean - x).sum() - total / seeds
        assert bias <= 2e-3 * total
