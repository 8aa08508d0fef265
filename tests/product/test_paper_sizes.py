"""The paper's accounting gives its tables to the byte, and a real frame is smaller."""

import numpy as np
import pytest

from qafel import Client, ConfigError, Job
from qafel.experiments.paper import CNN, paper_bytes
from specs import heavy_tailed


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
