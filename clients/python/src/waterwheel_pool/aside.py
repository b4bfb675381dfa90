"""Work aside: in tasks of asyncio, or in threads."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_tasks = set[asyncio.Task[None]]()


def task(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
    """Returns what ends it."""
    running = asyncio.create_task(work())
    _tasks.add(running)
    running.add_done_callback(_tasks.discard)
    return running.cancel


def thread(work: Callable[[], None]) -> Callable[[], object]:
    threading.Thread(target=work, daemon=True).start()
    return lambda: None


def task_later(delay: float, work: Callable[..., object], *arguments: Any) -> None:
    asyncio.get_running_loop().call_later(delay, work, *arguments)


def thread_later(delay: float, work: Callable[..., object], *arguments: Any) -> None:
    timer = threading.Timer(delay, work, arguments)
    timer.daemon = True
    timer.start()
