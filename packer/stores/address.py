"""Addresses of objects, taken apart and put together like paths, and the buckets that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol, TypedDict

from packer.errors import PackerError

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self


class ObjectMeta(TypedDict):
    """What a bucket says about an object."""

    path: str
    size: int
    e_tag: str | None
    version: str | None
    last_modified: datetime


class ListResult(TypedDict):
    """Objects and folders directly in a folder of a bucket."""

    common_prefixes: Sequence[str]
    objects: Sequence[ObjectMeta]


class GetResult(Protocol):
    """An object, or part of one."""

    @property
    def meta(self) -> ObjectMeta:
        """The object that it is part of."""

    def bytes(self) -> Buffer:
        """Read and return the content."""


class Bucket(Protocol):
    """Requests to a bucket. These are the methods of the stores of obstore that packer uses."""

    def head(self, path: str) -> ObjectMeta:
        """Return what is known about an object."""

    def get(self, path: str, *, options: Mapping[str, object]) -> GetResult:
        """Return an object, with "range" a part of it, with "if_match" only if it has this tag."""

    def put(
        self,
        path: str,
        file: bytes | Path,
        *,
        mode: str | Mapping[str, str] = ...,
        chunk_size: int = ...,
        max_concurrency: int = ...,
    ) -> object:
        """Write an object; with mode "create" if it is absent, with a tag if it has this tag."""

    def list(self, prefix: str | None, *, chunk_size: int) -> Iterable[Sequence[ObjectMeta]]:
        """Yield all objects in a folder, at any depth."""

    def list_with_delimiter(self, prefix: str | None) -> ListResult:
        """Return the objects and folders directly in a folder."""

    def copy(self, path: str, to: str, /) -> object:
        """Copy an object."""

    def delete(self, paths: str | Sequence[str]) -> object:
        """Remove objects."""


SCHEMES: dict[str, Callable[[str], Bucket] | None] = dict.fromkeys(
    ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "hf")
)
"""Beginnings of addresses that are object storage, or on the Hugging Face Hub, and functions that open a bucket.

None where obstore opens the address.
"""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Address of an object, or of a folder of objects."""

    scheme: str
    """Beginning of the address: "s3", "gs" or "az"."""

    bucket: str
    """Name of the bucket, or container."""

    key: str
    """Name of the object in the bucket, or of a folder, without a slash at either end."""

    @classmethod
    def of(cls, address: str) -> Self:
        """Return the path of an address such as "s3://bucket/folder".

        Raises:
            PackerError: it is no such address.
        """
        scheme, separator, rest = address.partition("://")
        bucket, _, key = rest.partition("/")
        if not separator or scheme not in SCHEMES or not bucket:
            raise PackerError(f"{address} is not an address in object storage like s3://bucket/folder")
        return cls(scheme, bucket, "/".join(part for part in key.split("/") if part))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}" if self.key else f"{self.scheme}://{self.bucket}"

    def __truediv__(self, name: str | PurePosixPath) -> Self:
        return self.of(f"{self}/{name}")

    @property
    def name(self) -> str:
        """Last part of the path; the bucket if there is no other."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def parts(self) -> tuple[str, ...]:
        """The bucket's address, and the parts of the key."""
        return (f"{self.scheme}://{self.bucket}", *filter(None, self.key.split("/")))

    @property
    def suffix(self) -> str:
        """Ending of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Self:
        """The folder; a bucket is its own parent."""
        return type(self)(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> Self:
        """Return the path with another ending."""
        return self.with_name(PurePosixPath(self.name).with_suffix(suffix).name)

    def with_name(self, name: str) -> Self:
        """Return the path with another last part."""
        return self.parent / name

    def absolute(self) -> Self:
        """Return the path itself."""
        return self

    def relative_to(self, other: Address) -> PurePosixPath:
        """Return the path relative to a folder.

        Raises:
            ValueError: it is not inside.
        """
        if (self.scheme, self.bucket) != (other.scheme, other.bucket):
            raise ValueError(f"{self} is not inside {other}")
        return PurePosixPath("/" + self.key).relative_to("/" + other.key)
