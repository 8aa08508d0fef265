"""The live page: runs in a folder, and a running federation, in the browser; and the same as one file.

    qafel dashboard runs             serve(Path("runs"))
    qafel report runs/a -o a.html    report(["runs/a"], "a.html")

The page is a few files of plain JavaScript without dependencies; nothing is loaded from elsewhere.
"""

from qafel.dashboard.federation import Federation
from qafel.dashboard.runs import Runs
from qafel.dashboard.server import serve
from qafel.dashboard.single_file import report

__all__ = ["Federation", "Runs", "report", "serve"]
