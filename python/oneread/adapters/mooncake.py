"""Mooncake's store: its lookups, with the descriptors that its clients read.

Follows ``mooncake.store.MooncakeDistributedStore`` of mooncake-transfer-engine-non-cuda 0.3.13.post1::

    batch_is_exist(keys: list[str]) -> list[int]        # 1: there, 0: not there, -1: error
    batch_get_replica_desc(keys: list[str]) -> dict[str, list[ReplicaDescriptor]]

A key has one replica here. Keys that are not there are not in the dict.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from oneread._errors import OnereadError
from oneread._native import LocationIndex
from oneread._types import FOUND

log = logging.getLogger("oneread")


class ReplicaStatus(Enum):
    """Of Mooncake's. What is in the index is complete."""

    COMPLETE = 3


@dataclass(frozen=True)
class Descriptor:
    """Bytes in an endpoint's memory."""

    buffer_address: int
    size: int
    transport_endpoint: str


@dataclass(frozen=True)
class MemoryDescriptor:
    buffer_descriptor: Descriptor


@dataclass(frozen=True)
class DiskDescriptor:
    """A file that has the object."""

    file_path: str
    object_size: int


@dataclass(frozen=True)
class ReplicaDescriptor:
    """Where an object is."""

    descriptor: MemoryDescriptor | DiskDescriptor
    number: int
    """The entry's number, which Mooncake's has not."""
    status: ReplicaStatus = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        return isinstance(self.descriptor, MemoryDescriptor)

    def is_disk_replica(self) -> bool:
        return isinstance(self.descriptor, DiskDescriptor)

    def is_local_disk_replica(self) -> bool:
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        if isinstance(self.descriptor, MemoryDescriptor):
            return self.descriptor
        raise RuntimeError("it is no memory replica; ask is_memory_replica first")

    def get_disk_descriptor(self) -> DiskDescriptor:
        if isinstance(self.descriptor, DiskDescriptor):
            return self.descriptor
        raise RuntimeError("it is no disk replica; ask is_disk_replica first")


class StoreIndex:
    """Where objects are, with the lookups of Mooncake's store. Any thread may call it."""

    def __init__(self, index: LocationIndex, *, disk_tiers: Collection[int] = ()) -> None:
        """``disk_tiers``: in these, an endpoint's name is the path of a file, which has one object."""
        self._index, self._disk_tiers = index, frozenset(disk_tiers)

    def is_exist(self, key: str) -> int:
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        """1 for each key that is there, 0 for each that is not; -1 if it could not be told."""
        try:
            return [int(is_there) for is_there in self._index.contains_many(keys)]
        except OnereadError as error:
            log.warning("Mooncake: no key could be looked up: %s", error)
            return [-1] * len(keys)

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys: list[str]) -> dict[str, list[ReplicaDescriptor]]:
        """Where each key is that is there. Nothing, if it could not be told."""
        try:
            found = self._index.locate_many(keys)[1]
            all_of = zip(keys, FOUND.iter_unpack(found))
            described = {key: self._described(*record) for key, record in all_of}
        except OnereadError as error:
            log.warning("Mooncake: no key could be looked up: %s", error)
            return {}
        return {key: [replica] for key, replica in described.items() if replica is not None}

    def _described(
        self, address: int, number: int, length: int, endpoint: int, owner: int, tier: int, is_there: bool
    ) -> ReplicaDescriptor | None:
        name = self._index.endpoint_name(endpoint) if is_there else None
        if name is None:
            return None
        if tier in self._disk_tiers:
            return ReplicaDescriptor(DiskDescriptor(name, length), number)
        return ReplicaDescriptor(MemoryDescriptor(Descriptor(address, length, name)), number)
