"""Results as tables of numbers: CSV files and data frames."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from qafel.errors import MissingExtraError
from qafel.tables import records_to_csv


class Tabular(ABC):
    """Something with flat records of numbers."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """The records."""

    def frame(self) -> Any:
        """The records as a pandas data frame."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("a data frame (to_csv() does not)", "notebook") from error
        return pandas.DataFrame(self.records())

    def to_csv(self, path: str | Path | None = None) -> str:
        """The records as CSV, which is also written to ``path``."""
        text = records_to_csv(self.records())
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text
