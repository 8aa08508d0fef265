"""What a run leaves in its folder: the model, the figures, and last of all the summary."""

import importlib.util

from qafel import report
from qafel.errors import MissingExtraError
from qafel.runs.folder import RunFolder
from qafel.runs.result import Result


def check(tensorboard: bool) -> None:
    """Complain before the run, not after it, when something is missing to write down what came out."""
    if importlib.util.find_spec("safetensors") is None:
        raise MissingExtraError("saving models", "torch")
    if tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError("exporting to TensorBoard", "tensorboard")


def write(folder: RunFolder, result: Result, *, tensorboard: bool = False) -> None:
    """Everything, the summary last: without it, the folder is not a result."""
    from safetensors.numpy import save

    folder.write("model.safetensors", save(result.parameters(), {"digest": result.summary.digest}))
    with folder._writing():
        try:
            if result.points:
                result.figure(folder.path / "curves.png")
            histogram = {int(tau): n for tau, n in result.summary.staleness["histogram"].items()}
            if histogram:
                report.histogram(folder.path / "staleness.png", histogram, "staleness", "updates")
        except MissingExtraError:
            pass  # numbers are complete without figures
    if tensorboard:
        export(folder, result)
    folder.finish(result.summary)


def export(folder: RunFolder, result: Result) -> None:
    """The measurements for TensorBoard, in the folder's ``tensorboard``."""
    from torch.utils.tensorboard import SummaryWriter

    with folder._writing(), SummaryWriter(str(folder.path / "tensorboard")) as writer:
        for point in result.points:
            for name in (
                "accuracy",
                "smoothed",
                "loss",
                "bytes_up",
                "bytes_down",
                "staleness",
                "time",
                "residual",
            ):
                writer.add_scalar(name, getattr(point, name), point.uploads)
