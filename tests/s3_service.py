"""A real S3 service on this machine for a block (moto's, in a process of its own); no thread of fsspec is left."""

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
import fsspec.asyn

START_SECONDS = 60
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # until whoever started it closes the pipe, or ends
server.stop()
"""


@contextmanager
def s3_service(bucket: str) -> Iterator[dict[str, Any]]:
    """Yield the `storage_options` of a service with an empty bucket; at the end neither process nor thread is left."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], START_SECONDS)[0], "the S3 service did not start"
        options = {
            "key": "test",
            "secret": "test",  # the service takes any
            "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{int(process.stdout.readline())}"},
            "config_kwargs": {"retries": {"max_attempts": 1}, "connect_timeout": 10, "read_timeout": 20},
        }
        with fsspec_thread():
            fsspec.filesystem("s3", **options).mkdir(bucket)
            yield options
    finally:
        process.kill()
        process.communicate()


@contextmanager
def fsspec_thread() -> Iterator[None]:
    """Have the thread in which fsspec waits for the network during a block alone; connections are closed at its end."""
    fsspec.asyn.get_loop()
    try:
        yield
    finally:
        from s3fs import S3FileSystem

        for key, driver in list(S3FileSystem._cache.items()):
            S3FileSystem.close_session(driver.loop, driver.s3)
            del S3FileSystem._cache[key], driver
        loop, thread = fsspec.asyn.loop[0], fsspec.asyn.iothread[0]
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
        fsspec.asyn.loop[0] = fsspec.asyn.iothread[0] = None
