"""Client and workers for waterwheel: `Client` and `AsyncClient` call a server, `worker` serves kinds of jobs."""

from .aio import AsyncClient as AsyncClient, AsyncHandle as AsyncHandle, AsyncStream as AsyncStream
from .client import Client as Client, Handle as Handle, Stream as Stream
from .errors import Failed as Failed, JobError as JobError, Later as Later, Lost as Lost, Missed as Missed
from .errors import Refused as Refused
from .kinds import Tested as Tested, Worker as Worker
from .messages import Job as Job, Result as Result, Retry as Retry
from .running import RunningJob as RunningJob

#: The worker of this program. A program that needs another one makes it by `Worker()`.
worker = Worker()
