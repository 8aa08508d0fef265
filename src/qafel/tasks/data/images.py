"""Readers of image folders, of LEAF's JSON (FEMNIST, CelebA, Shakespeare, Sent140) and of raw CelebA."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError, MissingExtraError
from qafel.tasks.data.files import reading
from qafel.tasks.data.table import Table
from qafel.tasks.data.text import leaf_text

SIDE = 32
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm"}
LEAF_SEED = 1549775860
MIN_IMAGES = 5
TRAIN_FRACTION = 0.8
IDENTITIES, ATTRIBUTES, FACES = "identity_CelebA.txt", "list_attr_celeba.txt", "img_align_celeba"


def class_folders(folder: Path) -> Table:
    """One folder of images per class; if they are in train/ and test/ (or val/), the latter is held out."""
    splits = [folder / name for name in ("train", "test", "val") if (folder / name).is_dir()]
    roots = splits if (folder / "train") in splits and len(splits) > 1 else [folder]
    names = sorted({d.name for root in roots for d in root.iterdir() if d.is_dir() and d.name[0] != "."})
    paths, labels, held = [], [], []
    for root in roots:
        for label, name in enumerate(names):
            images = sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in SUFFIXES)
            paths += images
            labels += [label] * len(images)
            held += [root.name in ("test", "val") and root != folder] * len(images)
    if len(names) < 2 or not paths:
        raise ConfigError(f"{folder} must have images in two or more folders, one for each class")
    return Table(
        pixels(paths), np.array(labels), held=np.array(held) if len(roots) > 1 else None, source=str(folder)
    )


def pixels(paths: Sequence[Path], mode: str = "RGB") -> npt.NDArray[np.uint8]:
    """The images, with the shorter side resized to 32 and the middle cropped to 32×32; mode "L" is gray."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading images", "data") from error
    out = np.empty((len(paths), SIDE, SIDE, *((3,) if mode == "RGB" else ())), np.uint8)
    for k, path in enumerate(paths):
        kinds = ValueError, SyntaxError, Image.DecompressionBombError
        with reading(path, *kinds), Image.open(path) as image:
            scale = SIDE / min(image.size)
            size = [max(SIDE, round(side * scale)) for side in image.size]
            small = image.convert(mode).resize((size[0], size[1]), Image.Resampling.BILINEAR)
        left, top = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
        out[k] = np.asarray(small.crop((left, top, left + SIDE, top + SIDE)))
    return out


class _Samples(msgspec.Struct):
    x: list[Any]
    y: list[Any]


class _Leaf(msgspec.Struct):
    users: list[str]
    user_data: dict[str, _Samples]


def leaf(path: Path) -> Table:
    """LEAF's JSON: a file, a folder of files, or a folder with train/ and test/.

    A sample is a list of numbers (FEMNIST: 784 numbers, an image of 28×28), the name of an image (CelebA), a
    text (Shakespeare) or a row with a tweet (Sent140).
    """
    split = path.is_dir() and (path / "train").is_dir()
    held_files = sorted((path / "test").glob("*.json")) if split else []
    folder = path / "train" if split else path
    files = [path] if path.is_file() else sorted(folder.glob("*.json"))
    users: dict[str, int] = {}
    samples: list[Any] = []
    labels: list[Any] = []
    owners: list[int] = []
    held: list[bool] = []
    for file in [*files, *held_files]:
        with reading(file, msgspec.MsgspecError, UnicodeDecodeError):
            content = msgspec.json.decode(file.read_bytes(), type=_Leaf)
        for user in content.users:
            data = content.user_data.get(user)
            if data is None or not data.x:
                raise ConfigError(f"user {user!r} in {file} has no samples; remove it from the file")
            if len(data.x) != len(data.y):
                raise ConfigError(
                    f"user {user!r} in {file} must have one label per sample, got {len(data.x)} samples and "
                    f"{len(data.y)} labels"
                )
            samples += data.x
            labels += data.y
            owners += [users.setdefault(user, len(users))] * len(data.x)
            held += [file in held_files] * len(data.x)
    if not samples:
        raise ConfigError(f"{path} has no users")
    by_user = np.array(owners, np.int32), np.array(held) if split else None
    if isinstance(samples[0], list) and len(samples[0]) > 4 and isinstance(samples[0][4], str):
        return leaf_text(samples, labels, *by_user, str(path))  # Sent140: the fifth column is the tweet
    if isinstance(samples[0], str) and Path(samples[0]).suffix.lower() not in SUFFIXES:
        return leaf_text(samples, labels, *by_user, str(path))
    try:
        targets = np.array(labels, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the labels of {path} must be numbers") from error
    return Table(_leaf_samples(samples, path), targets, *by_user, str(path))


def _leaf_samples(samples: list[Any], path: Path) -> npt.NDArray[Any]:
    if isinstance(samples[0], str):
        places = [path, *list(path.resolve().parents)[:3]]
        roots = [place / middle / FACES for place in places for middle in ("", "raw", "data/raw")]
        root = next((root for root in roots if root.is_dir()), None)
        if root is None:
            raise ConfigError(f"{path} names images; put the folder {FACES} beside it or into raw/")
        return pixels([root / name for name in samples])
    try:
        x = np.array(samples, np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the samples of {path} must be lists of numbers of equal length") from error
    return x.reshape(-1, 1, 28, 28) if x.shape[1:] == (784,) else x


def celeba(folder: Path) -> Table:
    """CelebA as it is distributed, split by LEAF's rules: the label is smiling, each celebrity is a user."""
    celebrities: dict[str, list[str]] = {}
    for line in _lines(folder / IDENTITIES):
        words = line.split()
        if len(words) >= 2:
            celebrities.setdefault(words[1], []).append(words[0])
    celebrities = {name: images for name, images in celebrities.items() if len(images) >= MIN_IMAGES}
    smiling = _smiling(folder / ATTRIBUTES)
    count = len(celebrities)
    training = set(random.Random(LEAF_SEED).sample(range(count), int(TRAIN_FRACTION * count)))
    order = list(celebrities)
    random.Random(LEAF_SEED).shuffle(order)  # LEAF shuffles the users when it samples, then splits them
    names, labels, users, held = [], [], [], []
    for k, name in enumerate(order):
        for image in celebrities[name]:
            if image not in smiling:
                raise ConfigError(f"{folder / ATTRIBUTES} has no line for {image}, which {IDENTITIES} lists")
            labels.append(smiling[image])
            users.append(k)
            held.append(k not in training)
            names.append(folder / FACES / image)
    if not names:
        raise ConfigError(f"{folder / IDENTITIES} has no celebrity with at least {MIN_IMAGES} images")
    return Table(
        pixels(names), np.array(labels), np.array(users, np.int32), np.array(held), source=str(folder)
    )


def _smiling(path: Path) -> dict[str, int]:
    lines = iter(_lines(path))
    next(lines, None)
    header = next(lines, "").split()
    if "Smiling" not in header:
        raise ConfigError(f"the second line of {path} must name a column Smiling")
    column = header.index("Smiling") + 1
    return {words[0]: int(words[column] == "1") for words in map(str.split, lines) if len(words) > column}


def _lines(path: Path) -> Iterable[str]:
    with reading(path, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").splitlines()
