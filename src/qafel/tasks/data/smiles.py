"""The smiling faces of the SMILEs project as one file of samples."""

import io
from pathlib import Path

import numpy as np

from qafel.errors import ConfigError
from qafel.files import write
from qafel.tasks.data.images import SUFFIXES, pixels

FOLDERS = {"negatives7": 0, "positives7": 1}
"""The folders of a checkout of SMILEs (github.com/hromi/SMILEsmileD), and their labels."""


def smiles(folder: str | Path, out: str | Path) -> tuple[int, int]:
    """Write the faces of a checkout of SMILEs to an npz file; return the number of faces and of smiles.

    The faces are gray and resized to 32×32, bilinear; ``y`` is 1 where a face smiles.
    """
    root, target = Path(folder), Path(out)
    if target.suffix != ".npz":
        raise ConfigError(f"the file of samples must end in .npz, got {target}")
    paths, labels = [], []
    for name, label in FOLDERS.items():
        places = sorted(place for place in root.rglob(name) if place.is_dir())
        files = sorted(path for place in places for path in place.rglob("*"))
        images = [path for path in files if path.suffix.lower() in SUFFIXES]
        if not images:
            raise ConfigError(
                f"{root} has no images in a folder {name}; check out github.com/hromi/SMILEsmileD and name it"
            )
        paths += images
        labels += [label] * len(images)
    y, file = np.array(labels, np.uint8), io.BytesIO()
    np.savez_compressed(file, x=pixels(paths, "L"), y=y)
    write(target, file.getvalue())
    return len(y), int(y.sum())
