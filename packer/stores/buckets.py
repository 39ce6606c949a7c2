"""Buckets: what holds objects, and how it is opened, once per process.

Credentials and endpoints are found as the vendors' own tools find them. For S3 these are the environment
(`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...), web identities, and roles of containers and instances; profiles and
single sign-on are read by boto3 where it is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import packer.stores.requests
from packer.errors import PackerError, first_line
from packer.stores.requests import StoreError, not_installed, reason_of

if TYPE_CHECKING:
    from obstore import GetOptions, ListResult, ObjectMeta
    from obstore.store import ObjectStoreMethods

Result = TypeVar("Result")


class HubBucket:
    """Repositories of the Hugging Face Hub, which are only read: hf://datasets/ORG/NAME/file, or NAME@REVISION.

    The tag of a file is the commit of its repository.
    """

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def head(self, path: str) -> ObjectMeta:
        """Return the size of a file, and the present commit."""
        return self._found(path, self._commit(path))

    def get(self, path: str, *, options: GetOptions) -> HubFile:
        """Return a file, or part of one, at the commit "if_match", or at the present one."""
        commit = str(options.get("if_match") or self._commit(path))
        found = self._found(path, commit)
        part = options.get("range", (0, found["size"]))
        assert isinstance(part, tuple)

        def read() -> bytes:
            with _files().open(self._name(path), "rb", revision=commit, cache_type="none") as file:
                file.seek(part[0])
                return bytes(file.read(part[1] - part[0]))

        return HubFile(found, _asked(read))

    def list(self, prefix: str | None, *, chunk_size: int) -> Iterator[Sequence[ObjectMeta]]:
        """Yield all files in a folder, at any depth, at the present commit."""
        folder = (prefix or "").rstrip("/")
        commit = self._commit(folder)
        found = _asked(lambda: _files().find(self._name(folder), detail=True, revision=commit))
        root = _asked(lambda: _files().resolve_path(self._name(folder), revision=commit)).unresolve().rstrip("/")
        if root not in found:  # if it is there, the folder is a file
            yield [_meta(folder + name.removeprefix(root), info, commit) for name, info in found.items()]

    def list_with_delimiter(self, prefix: str | None) -> ListResult[Sequence[ObjectMeta]]:
        """Return the files and folders directly in a folder."""
        begin = len(prefix or "")
        every = [each for chunk in self.list(prefix, chunk_size=1000) for each in chunk]
        folders = {each["path"][: each["path"].find("/", begin)] for each in every if "/" in each["path"][begin:]}
        return {
            "common_prefixes": sorted(folders),
            "objects": [each for each in every if "/" not in each["path"][begin:]],
        }

    def put(self, path: str, file: bytes | Path, **options: object) -> NoReturn:
        """Raise a PackerError."""
        raise PackerError(
            f"hf://{self._name(path)}: packer does not write to the Hub; write to a folder, and upload it with "
            "hf upload"
        )

    def copy(self, path: str, to: str) -> NoReturn:
        """Raise a PackerError."""
        self.put(to, b"")

    def delete(self, paths: str | Sequence[str]) -> NoReturn:
        """Raise a PackerError."""
        self.put(paths if isinstance(paths, str) else paths[0], b"")

    def _name(self, path: str) -> str:
        return f"{self._bucket}/{path}"

    def _found(self, path: str, commit: str) -> ObjectMeta:
        info = _asked(lambda: _files().info(self._name(path), revision=commit))
        if info["type"] != "file":
            raise FileNotFoundError(path)
        return _meta(path, info, commit)

    def _commit(self, path: str) -> str:
        """Return the commit that the path's revision is now."""
        from huggingface_hub import HfApi

        found = _asked(lambda: _files().resolve_path(self._name(path)))
        info = _asked(lambda: HfApi().repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision))
        return str(info.sha)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of the Hub, or part of one."""

    meta: ObjectMeta
    content: bytes

    def bytes(self) -> bytes:
        """Return the content."""
        return self.content


def _meta(path: str, info: Mapping[str, object], commit: str) -> ObjectMeta:
    never = datetime.fromtimestamp(0, timezone.utc)
    return {"path": path, "size": int(str(info["size"])), "e_tag": commit, "version": None, "last_modified": never}


@lru_cache(maxsize=1)
def _files() -> Any:
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


def _asked(request: Callable[[], Result]) -> Result:
    """Make a request to the Hub; errors of its HTTP library, which differs by version, become a StoreError."""
    try:
        return request()
    except (OSError, ValueError, PackerError):  # which say what is wrong
        raise
    except Exception as error:
        raise StoreError(first_line(error)) from error


Bucket: TypeAlias = "ObjectStoreMethods | HubBucket"
"""What answers requests to a bucket."""

_RETRIES = 4  # of obstore, within a try: for a part of a large upload
_CONNECT_TIMEOUT = timedelta(seconds=10)

SCHEMES: dict[str, Callable[[str], Bucket] | None] = {
    **dict.fromkeys(("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")),
    "hf": HubBucket,
}
"""Beginnings of addresses that are object storage, or on the Hugging Face Hub, and functions that open a bucket.

None where obstore opens the address.
"""


def opened_bucket(scheme: str, bucket: str) -> Bucket:
    """Return the bucket of an address, opened once per process.

    Raises a PackerError if obstore is not installed, the address or credentials are incomplete, or this process was
    forked from one that has used a store.
    """
    global _process
    if _process not in (None, os.getpid()):  # a request would wait forever for the threads of obstore
        raise PackerError(
            f"{scheme}://{bucket}: this process was forked from one that has used object storage, and cannot use it: "
            'start processes by spawning them, as with multiprocessing.set_start_method("spawn")'
        )
    _process = os.getpid()
    try:
        return _opened(scheme, bucket)
    except ImportError:
        raise not_installed(f"{scheme}://{bucket}") from None


_process: int | None = None  # that has used obstore, whose threads do not survive a fork


@lru_cache(maxsize=64)
def _opened(scheme: str, bucket: str) -> Bucket:
    if (opener := SCHEMES[scheme]) is not None:
        return opener(bucket)
    from obstore.store import from_url

    options: dict[str, Any] = {}
    if scheme in ("s3", "s3a"):
        options |= _credentials_of_boto3()
        options["virtual_hosted_style_request"] = not _endpoint()
    try:
        timeout = packer.stores.requests.TIMEOUT
        is_open = _endpoint().startswith("http://")
        return from_url(
            f"{scheme}://{bucket}",
            client_options={"timeout": timeout, "connect_timeout": _CONNECT_TIMEOUT, "allow_http": is_open},
            retry_config={"max_retries": _RETRIES, "retry_timeout": timeout},  # within a request, or a part of one
            **options,
        )
    except Exception as error:
        raise PackerError(f"{scheme}://{bucket} cannot be opened: {reason_of(error)}") from error


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _credentials_of_boto3() -> dict[str, object]:
    """Return a provider for credentials that are in a profile or come from a single sign-on."""
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
