"""While the command line loads PyTorch, Ctrl-C ends it with one line and no traceback."""

import sys
from pathlib import Path
from types import TracebackType


def is_program() -> bool:
    """Whether this is the command: `python -m` (called `-m` while it loads) or its file."""
    own = Path(sys.argv[0]).stem if sys.argv else ""
    return own == "minitransformer" or (own == "-m" and "minitransformer" in sys.orig_argv)


def say_stopped(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """In the place of `sys.excepthook`."""
    if issubclass(kind, KeyboardInterrupt):
        print("\nminitransformer: stopped", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if is_program():
    sys.excepthook = say_stopped
