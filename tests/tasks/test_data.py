"""Data: every format is read, every partition deals all samples out, every mistake gets one sentence."""

import gzip
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qafel import ConfigError
from qafel.tasks.data import population
from qafel.tasks.data.faces import Faces
from qafel.tasks.data.partitions import PartitionedTable, celeba_sizes
from qafel.tasks.data.table import Table


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QAFEL_CACHE", str(tmp_path / "cache"))


def pixels(n: int, *shape: int) -> Any:
    return np.random.default_rng(n).integers(0, 256, (n, *shape), dtype=np.uint8)


def table(n: int = 400, classes: int = 4) -> Table:
    rng = np.random.default_rng(0)
    x = np.arange(n, dtype=np.float32)[:, None]
    return Table(x, rng.integers(0, classes, n), np.arange(n) // 10)


def owned(result: PartitionedTable) -> list[int]:
    return [int(v) for k in range(result.clients) for v in result.samples(k)[0].ravel()]


@pytest.mark.parametrize("partition", ["natural", "iid", "consecutive", "dirichlet:1", "shards:2", "celeba"])
def test_a_partition_gives_each_sample_to_one_client_and_none_that_is_held_out(partition: str) -> None:
    clients = None if partition in ("natural", "celeba") else 16
    result = PartitionedTable(table(), partition, clients, 0.2, 0)
    mine, held = owned(result), result.held_out(10**6)[0].ravel().astype(int).tolist()
    assert len(mine) == len(set(mine))
    assert not set(mine) & set(held)
    assert len(held) == 80
    assert len(mine) > 285 if partition == "celeba" else len(mine) == 320
    assert result.count(0) == len(result.samples(0)[1])
    again = PartitionedTable(table(), partition, clients, 0.2, 0)
    assert owned(again) == mine


def test_partitions_are_what_they_are_called() -> None:
    natural = PartitionedTable(table(), "natural", None, 0.2, 0)
    assert natural.clients == 32
    assert all(len({int(v) // 10 for v in natural.samples(k)[0].ravel()}) == 1 for k in range(32))
    shards = PartitionedTable(table(), "shards:1", 8, 0.2, 0)
    assert max(len(np.unique(shards.samples(k)[1])) for k in range(8)) <= 2
    consecutive = owned(PartitionedTable(table(), "consecutive", 8, 0.2, 0))
    assert consecutive == sorted(consecutive)

    def skew(alpha: str) -> float:
        result = PartitionedTable(table(4000), f"dirichlet:{alpha}", 20, 0.2, 0)
        shares = [np.bincount(result.samples(k)[1], minlength=4) / result.count(k) for k in range(20)]
        return float(np.std(shares))

    assert skew("0.3") > 2 * skew("10")


def test_skewed_clients_have_5_to_35_samples_and_their_own_shares_of_the_classes() -> None:
    def clients(alpha: float) -> list[np.ndarray]:
        dealt = PartitionedTable(table(4000), f"skewed:{alpha}", None, 0.2, 0)
        return [np.bincount(dealt.samples(k)[1], minlength=4) for k in range(dealt.clients)]

    even, skewed = clients(100.0), clients(0.3)
    sizes = [int(labels.sum()) for labels in skewed]
    assert (min(sizes), max(sizes)) == (5, 35)
    assert 3200 - 35 < sum(sizes) <= 3200
    spread = [np.std([labels / labels.sum() for labels in some]) for some in (even, skewed)]
    assert spread[1] > 2 * spread[0]
    assert np.abs(sum(skewed) - 800).max() <= 35  # no class is left over
    with pytest.raises(ConfigError, match="at most 1 clients with 5 to 35"):
        PartitionedTable(table(40), "skewed:0.3", 30, 0.2, 0)


def test_celebas_sizes_have_its_range_and_mean() -> None:
    sizes = celeba_sizes((np.arange(100_000) + 0.5) / 100_000)
    assert (sizes.min(), sizes.max()) == (5, 35)
    assert sizes.mean() == pytest.approx(200_288 / 9_343, abs=0.5)


def test_faces_are_shaped_like_celeba_and_drawn_from_the_seed() -> None:
    faces = Faces()
    assert faces.clients == 7474
    assert faces.held == 1869 - 1 or faces.held == 1869 or faces.held == 1868
    x, labels = faces.samples(17)
    assert x.shape == (faces.count(17), 3, 32, 32)
    assert x.dtype == np.float32
    assert -1 <= x.min() < x.max() <= 1
    assert set(np.unique(labels)) <= {0, 1}
    assert np.array_equal(x, Faces().samples(17)[0])
    assert not np.array_equal(x[:5], Faces(seed=1).samples(17)[0][:5])
    shares = [faces.samples(k)[1].mean() for k in range(200)]
    assert 0.45 < np.mean(shares) < 0.55
    assert np.std(shares) > 0.12  # some smile more than others
    held = faces.held_out(100)
    assert len(held[1]) == 100


def test_a_million_users_cost_nothing() -> None:
    import tracemalloc

    tracemalloc.start()
    faces = Faces(1_000_000)
    faces.samples(999_999)
    assert tracemalloc.get_traced_memory()[1] < 3e6
    tracemalloc.stop()


def test_npz_is_read_and_kept_memory_mapped(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=pixels(50, 8, 8), y=np.arange(50) % 3, users=np.repeat(np.arange(10), 5))
    result = population(str(path))
    assert isinstance(result, PartitionedTable)
    assert isinstance(result.table.x, np.memmap)
    assert (result.clients, result.shape, result.classes) == (8, (1, 8, 8), 3)
    x, _ = result.samples(0)
    assert np.allclose((x + 1) * 127.5, np.round((x + 1) * 127.5), atol=1e-4)
    np.savez(path, x=pixels(60, 8, 8), y=np.arange(60) % 3)
    os.utime(path, ns=(1, 1))
    assert len(population(str(path), partition="iid", clients=6).held_out(999)[1]) == 12  # read again


def test_libsvm_is_read_plain_and_gzipped(tmp_path: Path) -> None:
    text = "".join(f"{1 + k % 2} 1:{k} 3:0.5 # c\n" for k in range(20))
    (tmp_path / "a.svm").write_text(text)
    (tmp_path / "a.libsvm.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.svm", "a.libsvm.gz"):
        result = population(str(tmp_path / name), partition="consecutive", clients=4, held_out=0.2)
        assert (result.shape, result.classes, result.clients) == ((3,), 2, 4)
        assert set(result.samples(0)[0][:, 2]) == {0.5}


def idx(data: Any) -> bytes:
    return struct.pack(f">HBB{data.ndim}I", 0, 8, data.ndim, *data.shape) + bytes(data.tobytes())


def test_idx_files_keep_their_test_set_apart(tmp_path: Path) -> None:
    for part, n in (("train", 40), ("t10k", 10)):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels(n, 28, 28))))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx((np.arange(n) % 10).astype(np.uint8)))
    result = population(str(tmp_path), partition="iid", clients=4)
    assert (result.shape, result.classes) == ((1, 28, 28), 10)
    assert sum(result.count(k) for k in range(4)) == 40
    assert len(result.held_out(99)[1]) == 10


def test_cifar_10_is_read_in_its_binary_version(tmp_path: Path) -> None:
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        rows = np.concatenate([(np.arange(20, dtype=np.uint8) % 10)[:, None], pixels(20, 3072)], 1)
        (tmp_path / name).write_bytes(rows.tobytes())
    result = population(str(tmp_path), partition="iid", clients=4)
    assert (result.shape, result.classes) == ((3, 32, 32), 10)
    raw = np.frombuffer((tmp_path / "test_batch.bin").read_bytes(), np.uint8).reshape(20, 3073)
    x, labels = result.held_out(99)
    assert np.array_equal(np.round((x.reshape(20, -1) + 1) * 127.5).astype(np.uint8), raw[:, 1:])
    assert np.array_equal(labels, raw[:, 0])


def picture(path: Path, size: tuple[int, int], colour: tuple[int, int, int]) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_folders_named_by_class_are_resized_and_cropped(tmp_path: Path) -> None:
    for k in range(12):
        picture(tmp_path / "red" / f"{k}.png", (64, 48), (255, 0, 0))
        picture(tmp_path / "blue" / f"{k}.jpg", (40, 90), (0, 0, 255))
    result = population(str(tmp_path), partition="iid", clients=3)
    assert (result.shape, result.classes) == ((3, 32, 32), 2)
    x, labels = result.samples(0)
    assert np.array_equal(x[:, 0].mean((1, 2)) > 0, labels == 1)  # blue, red: by name


def leaf(users: dict[str, int], sample: Any) -> bytes:
    data = {
        u: {"x": [sample(u, k) for k in range(n)], "y": [k % 2 for k in range(n)]} for u, n in users.items()
    }
    return json.dumps({"users": list(users), "num_samples": list(users.values()), "user_data": data}).encode()


def test_leaf_json_keeps_its_users_and_its_split(tmp_path: Path) -> None:
    for part, users in (("train", {"a": 6, "b": 4}), ("test", {"c": 5})):
        (tmp_path / part).mkdir()
        (tmp_path / part / "all.json").write_bytes(leaf(users, lambda u, k: [k / 10] * 784))
    result = population(str(tmp_path))
    assert (result.clients, result.shape) == (2, (1, 28, 28))
    assert [result.count(k) for k in range(2)] == [6, 4]
    assert len(result.held_out(99)[1]) == 5


def test_leafs_celeba_finds_its_images(tmp_path: Path) -> None:
    for k in range(6):
        picture(tmp_path / "raw" / "img_align_celeba" / f"{k}.jpg", (178, 218), (40 * k, 0, 0))
    (tmp_path / "all_data.json").write_bytes(leaf({"a": 3, "b": 3}, lambda u, k: f"{k + 3 * (u == 'b')}.jpg"))
    result = population(str(tmp_path / "all_data.json"), held_out=0.5)
    assert (result.clients, result.shape) == (1, (3, 32, 32))


def test_a_checkout_of_smiles_becomes_a_file_of_gray_faces(tmp_path: Path) -> None:
    from qafel.tasks.data.smiles import smiles

    root = tmp_path / "SMILEsmileD" / "SMILEs"
    for k in range(6):
        folder = root / ("positives/positives7" if k < 2 else "negatives/negatives7")
        picture(folder / f"{k}.jpg", (64, 64), (40 * k,) * 3)
    (root / "negatives" / "negatives7" / "notes.txt").write_text("no image")
    assert smiles(tmp_path / "SMILEsmileD", tmp_path / "smiles.npz") == (6, 2)
    with np.load(tmp_path / "smiles.npz", allow_pickle=False) as file:
        assert file["x"].shape == (6, 32, 32)
        assert file["y"].tolist() == [0, 0, 0, 0, 1, 1]
        assert sorted(int(face[0, 0]) for face in file["x"]) == [0, 40, 80, 120, 160, 200]
    assert population(str(tmp_path / "smiles.npz"), partition="iid", clients=2).shape == (1, 32, 32)
    with pytest.raises(ConfigError, match=r"no images in a folder negatives7.*hromi/SMILEsmileD"):
        smiles(root / "positives", tmp_path / "other.npz")
    with pytest.raises(ConfigError, match=r"must end in .npz, got .*smiles.csv"):
        smiles(root, tmp_path / "smiles.csv")


def test_raw_celeba_is_split_by_leafs_rules(tmp_path: Path) -> None:
    identities: list[str] = []
    attributes = ["66", "Bald Smiling Young"]
    for person in range(12):
        for k in range(6 if person < 10 else 3):  # two have too few
            name = f"{len(identities):06d}.jpg"
            picture(tmp_path / "img_align_celeba" / name, (178, 218), (20 * person + 10,) * 3)
            identities.append(f"{name} {person}")
            attributes.append(f"{name} -1 {1 if k % 2 else -1} 1")
    (tmp_path / "identity_CelebA.txt").write_text("\n".join(identities))
    (tmp_path / "list_attr_celeba.txt").write_text("\n".join(attributes))
    result = population(str(tmp_path))
    assert result.clients == 8
    assert len(result.held_out(99)[1]) == 12
    assert [result.count(k) for k in range(8)] == [6] * 8
    assert result.samples(0)[1].tolist() == [0, 1, 0, 1, 0, 1]
    import random

    order = [str(person) for person in range(10)]
    random.Random(1549775860).shuffle(order)
    chosen = {order[k] for k in random.Random(1549775860).sample(range(10), 8)}
    assert isinstance(result, PartitionedTable)
    trained = {int(result.samples(k)[0][0, 0, 0, 0] * 127.5 + 127.5 + 0.5) // 20 for k in range(8)}
    assert {str(person) for person in trained} == chosen


def test_a_factory_of_the_users_own() -> None:
    x, y = np.zeros((40, 3), np.float32), np.arange(40) % 2
    assert population(lambda: (x, y), partition="iid", clients=5).clients == 5
    assert population(lambda: (x, y, np.arange(40) // 8)).clients == 4
    assert population(lambda: Faces(7)).clients == 7


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.npz", b"not a zip", "cannot read .*a.npz"),
        ("a.svm", b"1 2:3\nx y\n", "line 2 of .* is not 'label index:value"),
        ("a.svm", b"1 0:3\n", "indices start at 1"),
        ("a.svm", b"", "has no samples"),
        ("a.svm.gz", b"junk", "cannot read"),
        ("a.json", b"{}", "cannot read"),
        ("a.json", b'{"users":["u"],"user_data":{"u":{"x":[],"y":[]}}}', "user 'u' in .* has no samples"),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        population(write(tmp_path / name, data))


def test_bad_arrays_get_one_sentence(tmp_path: Path) -> None:
    x = np.zeros((20, 3), np.float32)
    for columns, sentence in [
        ({"x": x}, "must have the arrays x"),
        ({"x": x, "y": np.arange(19)}, "20 samples and 19 targets"),
        ({"x": x, "y": np.arange(20) - 1}, "label -1 of sample 0 .* out of range"),
        (
            {"x": x, "y": np.where(np.arange(20) > 0, 0.5, np.nan)},
            "sample 0 of the targets .* not finite",
        ),
        ({"x": np.array(["a"] * 20)[:, None], "y": np.arange(20)}, "must be numbers"),
    ]:
        np.savez(tmp_path / "a.npz", **columns)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=sentence):
            population(str(tmp_path / "a.npz"), partition="iid", clients=2)


def test_damaged_idx_and_cifar_get_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(pixels(4, 28, 28))[:-1])
    with pytest.raises(ConfigError, match="cut off or damaged"):
        population(str(tmp_path))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"junk")
    with pytest.raises(ConfigError, match="magic number"):
        population(str(tmp_path))
    folder = tmp_path / "cifar"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(b"\x0c" + bytes(3072))
    with pytest.raises(ConfigError, match=r"label 12 of sample 0 .* from 0 to 9"):
        population(str(folder))
    (folder / "data_batch_1.bin").write_bytes(bytes(100))
    with pytest.raises(ConfigError, match="cut off or damaged"):
        population(str(folder))


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        ("nowhere.npz", {}, "unknown data 'nowhere.npz'"),
        ("digits", {"partition": "by-mood"}, "unknown partition"),
        ("digits", {"partition": "dirichlet:-1"}, "unknown partition"),
        ("digits", {"partition": "dirichlet:0.001", "clients": 300}, "has no samples"),
        ("digits", {"partition": "iid", "clients": 5000}, "cannot share"),
        ("digits", {"held_out": 1.0}, "held_out must be between"),
        ("digits", {"clients": 0}, "clients must be at least 1"),
        ("faces", {"partition": "iid"}, "its partition is natural"),
        (lambda: 3, {}, "the data must be .* got int"),
    ],
)
def test_a_bad_choice_gets_one_sentence(source: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        population(source, **options)


PLAY = """Nurse:
{0}

Porter:
Who is there?

Nurse:
{0}
"""


def test_a_play_has_a_client_for_every_role_that_says_enough(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text(PLAY.format("Go, and be gone; é!\n" * 20), encoding="utf-8")
    result = population(str(path), held_out=0.0)
    assert (result.clients, result.shape, result.classes) == (1, (80,), 96)  # the porter says too little
    x, y = result.samples(0)
    assert x.dtype == y.dtype == np.int64
    assert np.array_equal(x[0, 1:], y[0, :-1])
    assert np.array_equal(x[1:, 0], y[:-1, -1])
    letters = "\n" + "".join(map(chr, range(32, 127)))
    assert "".join(letters[k] for k in x[0, :20]) == "Go, and be gone; ?!\n"


def test_a_text_that_is_no_play_is_read_as_libsvm_and_a_play_of_short_roles_is_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("1 1:0.5 2:1\n2 1:0.25\n" * 20)
    assert population(str(tmp_path / "a.txt")).shape == (2,)
    (tmp_path / "b.txt").write_text(PLAY.format("Short."))
    with pytest.raises(ConfigError, match="of roles with more than 500 characters"):
        population(str(tmp_path / "b.txt"))


def test_leafs_shakespeare_and_sent140_as_leaf_writes_them(tmp_path: Path) -> None:
    lines = {"x": ["to be or not to be, that is the question".ljust(80, "."), "short"], "y": ["n", "!"]}
    plays = {
        "users": ["HAMLET", "OPHELIA"],
        "num_samples": [2, 2],
        "user_data": {"HAMLET": lines, "OPHELIA": lines},
    }
    (tmp_path / "plays.json").write_text(json.dumps(plays))
    result = population(str(tmp_path / "plays.json"), held_out=0.0)
    assert (result.clients, result.shape, result.classes) == (2, (80,), 96)
    assert result.samples(0)[1].tolist() == [1 + ord("n") - 32, 1 + ord("!") - 32]
    row = [
        "1467810369",
        "Mon Apr 06 22:19:45 PDT 2009",
        "NO_QUERY",
        "someone",
        "What a Day what a day",
        "training",
    ]
    tweets = {"users": ["u", "v"], "user_data": {u: {"x": [row, row], "y": [0, 1]} for u in "uv"}}
    (tmp_path / "tweets.json").write_text(json.dumps(tweets))
    result = population(str(tmp_path / "tweets.json"), held_out=0.0)
    assert (result.clients, result.shape, result.classes) == (2, (25,), 2)
    words = result.samples(1)[0][0].tolist()
    assert words[:3] == words[3:6]
    assert words[6:] == [0] * 19
    assert 0 < min(words[:3]) <= max(words[:3]) < 10_000
    assert getattr(result, "vocabulary", 0) == 10_000
