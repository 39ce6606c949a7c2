"""Buckets in object storage, opened once per process, and requests to them, repeated if they fail.

Credentials and endpoints are found in the same way as by the vendors' own tools. For S3 these are the environment
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...), web identities, and roles of containers and instances. boto3, if it is
installed, reads profiles and single sign-on.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from packer.errors import PackerError, StoreError, extra
from packer.signals import raise_if_interrupted

if TYPE_CHECKING:
    from obstore.store import ObjectStoreMethods

Item = TypeVar("Item")
Result = TypeVar("Result")

_OPENED_TOGETHER = 16  # number of files; opening each may make several requests at the same time

AT_ONCE = 32
"""Maximum number of requests of a process at the same time. A store answers each after 10 to 100 ms."""

PART = 8 << 20
"""Maximum number of bytes that one request reads or writes of a large object."""

TIMEOUT = timedelta(seconds=60)
"""Time limit of a request, including its body of at most 16 MB."""

_TRIES = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds between tries
_SILENT_TRIES = 2  # number of tries without an answer after which a store is given up
_LEFT_ALONE = 10.0  # seconds without requests to a silent store, so that a failing command ends at once

_PREAMBLE = re.compile(r"^Generic \w+ error: Error performing .*? retry_timeout: \S+\s+- ")
_FINAL = ("dns error", "InvalidAccessKeyId", "ExpiredToken", "status: 400")  # errors for which another try is useless
_NO_REASON = re.compile(r"status code: (4\d\d [A-Za-z ]+):?$")  # the answer to a HEAD request, which has no body


class ChangedError(StoreError):
    """Raised if an object has another version than when it was opened."""


def requested(name: str, request: Callable[[], Result]) -> Result:
    """Make a request to an address. Repeats it after a pause if the store or the network fails.

    Raises:
        FileNotFoundError: the object does not exist.
        FileExistsError: the object exists, and the request must not replace it.
        ChangedError: the object has another version than the requested one.
        PermissionError: credentials are missing, wrong or not sufficient.
        StoreError: anything else, after several tries; after 2 * TIMEOUT if the store does not answer, and then
            immediately for the next requests.
    """
    try:
        from obstore import exceptions
    except ImportError:
        raise PackerError(f"{name} needs the package obstore: {extra('store')}") from None
    bucket, store = "/".join(name.split("/")[:3]), name.split("/")[2]
    begun, pause, silent = time.monotonic(), _FIRST_PAUSE, 0
    if begun < _left_alone_until.get(store, begun):
        raise StoreError(f"{name}: the store cannot be used ({_no_answer()}, tried {_SILENT_TRIES} times)")
    for number in range(1, _TRIES + 1):
        try:
            result = request()
            _answered[store] = time.monotonic()
            return result
        except FileNotFoundError as error:
            raise FileNotFoundError(2, "no such object", name) from error
        except exceptions.AlreadyExistsError as error:
            raise FileExistsError(17, "the object exists", name) from error
        except exceptions.PreconditionError as error:
            raise ChangedError(
                f"{name}: the object was changed while it was read; repeat the command when nothing writes to it"
            ) from error
        except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(13, f"access denied ({reason_of(error)})", name) from error
        except (exceptions.BaseError, OSError) as error:
            if (odd := re.search('Path "(.*)" contained empty path segment', str(error))) is not None:
                raise PackerError(
                    f"{bucket}/{odd[1]}: the name of this object has an empty part (//), and nothing beside it can be "
                    "listed: rename it"
                ) from error
            if "NoSuchBucket" in str(error):
                remedy = f"create it, or check the name{' and AWS_ENDPOINT_URL' if _endpoint() else ''}"
                raise PackerError(f"{bucket}: there is no such bucket: {remedy}") from error
            if "status: 403" in str(error):  # obstore has no error type for a denied list request
                raise PermissionError(13, f"access denied ({reason_of(error)})", name) from error
            silent += _is_silent(error)
            if silent == _SILENT_TRIES and _answered.get(store, begun) <= begun:
                _left_alone_until[store] = time.monotonic() + _LEFT_ALONE
            is_last = number == _TRIES or silent == _SILENT_TRIES
            if is_last or any(words in str(error) for words in _FINAL):
                tried = f", tried {number} times" if number > 1 else ""
                raise StoreError(f"{name}: the store cannot be used ({reason_of(error)}{tried})") from error
            raise_if_interrupted()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    raise AssertionError


_answered: dict[str, float] = {}  # time of the last successful request, by bucket
_left_alone_until: dict[str, float] = {}


def _is_silent(error: BaseException) -> bool:
    """Whether the error is that no answer came in time."""
    return "kind: Timeout" in str(error) or "timed out" in str(error)


def _no_answer() -> str:
    return f"no answer within {TIMEOUT.seconds} seconds"


def reason_of(error: BaseException) -> str:
    """Return the innermost reason of an error as one short line."""
    if "/latest/api/token" in str(error):  # the last place where S3 credentials are searched
        return (
            "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true "
            "for a public bucket"
        )
    if _is_silent(error):
        return _no_answer()
    if "error sending request" in str(error):
        check = f"at {_endpoint()}: check AWS_ENDPOINT_URL and" if _endpoint() else "there: check"
        return f"nothing answers {check} the network"
    lines = [line.strip() for line in str(error).split("Debug source")[0].splitlines() if line.strip()]
    text = _PREAMBLE.sub("", " ".join(lines)) or type(error).__name__
    code, message = (re.search(f"<{name}>([^<]*)", text) for name in ("Code", "Message"))
    if code is not None:
        return f"{code[1]}: {message[1]}" if message is not None else code[1]
    status = _NO_REASON.search(text)
    if status is not None:
        return f"{status[1]}: have the credentials expired?" if status[1].startswith("400") else status[1]
    return text if len(text) <= 300 else f"{text[:297]}..."


def in_parallel(task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Call a function for each item, several at a time, because it waits for a store. Returns the results in order."""
    if len(items) <= 1:
        return [task(item) for item in items]
    futures = [submitted(task, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def opened_in_parallel(task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Do what `in_parallel` does, but in other threads: `task` may call `in_parallel` itself."""
    if len(items) <= 1:
        return [task(item) for item in items]
    with ThreadPoolExecutor(min(_OPENED_TOGETHER, len(items))) as threads:
        return list(threads.map(task, items))


def submitted(task: Callable[..., Result], *arguments: object) -> Future[Result]:
    """Start a call in a thread, because it waits for a store."""
    return _threads(os.getpid()).submit(task, *arguments)


@lru_cache(maxsize=1)
def _threads(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="store")


# Buckets by address.

_RETRIES = 4  # retries by obstore within each of our tries, such as for a part of a large upload
_CONNECT_TIMEOUT = timedelta(seconds=10)

SCHEMES: dict[str, Callable[[str], ObjectStoreMethods] | None] = dict.fromkeys(
    ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
)
"""Functions that open a bucket, by the beginning of an address in object storage; None if obstore opens it."""


def opened_bucket(scheme: str, bucket: str) -> ObjectStoreMethods:
    """Return the bucket of an address, opened once per process.

    Raises a PackerError if the address or the credentials are incomplete, or if this process was forked from a process
    that has used a store.
    """
    global _process
    if _process not in (None, os.getpid()):  # obstore's threads are missing here, so a request would wait forever
        raise PackerError(
            f"{scheme}://{bucket}: this process was forked from one that has used object storage, and cannot use it: "
            'start processes by spawning them, as with multiprocessing.set_start_method("spawn")'
        )
    _process = os.getpid()
    return _opened(scheme, bucket)


_process: int | None = None  # id of the process that has used obstore, whose threads do not survive a fork


@lru_cache(maxsize=64)
def _opened(scheme: str, bucket: str) -> ObjectStoreMethods:
    if (opener := SCHEMES[scheme]) is not None:
        return opener(bucket)
    from obstore.store import from_url

    options: dict[str, Any] = {}
    if scheme in ("s3", "s3a"):
        options |= _credentials_of_boto3()
        options["virtual_hosted_style_request"] = not _endpoint()
    try:
        is_open = _endpoint().startswith("http://")
        return from_url(
            f"{scheme}://{bucket}",
            client_options={"timeout": TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT, "allow_http": is_open},
            retry_config={"max_retries": _RETRIES, "retry_timeout": TIMEOUT},
            **options,
        )
    except Exception as error:
        raise PackerError(f"{scheme}://{bucket} cannot be opened: {reason_of(error)}") from error


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _credentials_of_boto3() -> dict[str, object]:
    """Return the option that provides credentials of a profile or a single sign-on, if there are any."""
    if "AWS_ACCESS_KEY_ID" in os.environ or os.environ.get("AWS_SKIP_SIGNATURE"):
        return {}
    try:
        from boto3 import Session
        from obstore.auth.boto3 import Boto3CredentialProvider

        session = Session()
        if session.get_credentials() is None:
            return {}
        region = {"region": session.region_name} if session.region_name else {}
        return {"credential_provider": Boto3CredentialProvider(session), **region}
    except ImportError:
        return {}
