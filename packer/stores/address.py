"""Addresses of objects, taken apart and put together like paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from packer.errors import PackerError

if TYPE_CHECKING:
    from typing_extensions import Self

SCHEMES: dict[str, Callable[[str], Any] | None] = dict.fromkeys(
    ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "hf")
)
"""Beginnings of addresses that are object storage, or on the Hugging Face Hub, and functions that open a bucket.

A function returns a store of obstore, or an object with its methods; None where obstore itself opens the address.
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
