"""Next-character prediction: an LSTM on plays, one client for every role.

    python examples/shakespeare_lstm.py shakespeare.txt

The file has turns, separated by empty lines, each after a line ``Role:``. Without a file, a few roles are
made up, to try it.
"""

import sys
import tempfile
from pathlib import Path

from shared import QUICK, compare

ROLES = ("First Citizen", "Messenger", "Nurse", "Porter", "Clown", "Captain")
LINE = "The {0} said to the {1}: go to the {2}, and tell the {0} that the {1} is gone.\n"


def made_up() -> str:
    """A play in which everybody says much the same."""
    turns = []
    for k in range(60):
        words = [ROLES[(k + j) % 6].lower() for j in (1, 2, 3)]
        turns.append(f"{ROLES[k % 6]}:\n" + 2 * LINE.format(*words))
    return "\n".join(turns)


if __name__ == "__main__":
    files = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    if not files:
        files = [str(Path(tempfile.mkdtemp()) / "play.txt")]
        Path(files[0]).write_text(made_up())
    compare(
        "shakespeare_lstm",
        data=files[0],
        model="lstm",
        steps=2 if QUICK else 10,
        batch_size=16,
        local_rate=1.0,
        rate=20.0,
        uploads=40 if QUICK else 3000,
        evaluate_every=20 if QUICK else 100,
        held_out_samples=64 if QUICK else 500,
    )
