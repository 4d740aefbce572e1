"""A time limit for a reader's code, so that an endless loop ends in a message."""

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["time_limit"]


class TookTooLongError(BaseException):
    """Raised in code that ran out of time; `except Exception` does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TookTooLongError` in the block, and in threads that it started, after `seconds`.

    A second thread asks CPython to raise it at the next instruction. This needs no signals, so it
    works on every system, in notebooks, and in threads other than the main one. It cannot
    interrupt a single call that never returns from C, such as `sum(itertools.count())`. Under a
    debugger there is no limit: whoever steps through code needs time.
    """
    if sys.gettrace() is not None:
        yield
        return
    here = threading.get_ident()
    before = {thread.ident for thread in threading.enumerate()}
    lock = threading.Lock()  # without it, the exception might be raised after the block
    finished = False

    def stop() -> None:
        with lock:
            if finished:
                return
            started = {thread.ident for thread in threading.enumerate()} - before
            for ident in (started | {here}) - {threading.get_ident()}:
                raise_in_thread(ctypes.c_ulong(ident or 0), ctypes.py_object(TookTooLongError))

    raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            finished = True
        timer.cancel()
