"""The ``[transfer]`` table that agent and coordinator share.

::

    [transfer]
    chunk_kib = 0                           # 16, 32, 64, 128 or 256; 0: by the link's pace
    quota_mib = 0                           # of all blobs; 0: no limit but the disk's
    reserve_mib = 64                        # of the disk that stay free for others
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edgepfl.bus._pace import chunk_for
from edgepfl.bus.blobs import Room
from edgepfl.wire import CHUNK

Mebibytes: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 30)]
_KIB, _MIB = 1 << 10, 1 << 20


class Transfer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How blobs are transferred and how much room they may take.

    Attributes:
        chunk_kib: size of a chunk; 0 follows the link's pace: the greatest that takes a second at most.
        quota_mib: of all blobs that are transferred, whole or coming; 0: no limit but the disk's.
        reserve_mib: of the disk that stay free for others: a blob that would need them is refused before it begins.
    """

    chunk_kib: Literal[0, 16, 32, 64, 128, 256] = 0
    quota_mib: Mebibytes = 0
    reserve_mib: Mebibytes = 64

    @property
    def room(self) -> Room:
        """How much of the disk a store may use."""
        return Room(self.quota_mib * _MIB, self.reserve_mib * _MIB)

    def chunk(self, rate: float | None, *, most: int, known: int = CHUNK) -> int:
        """The size of chunk to wish for, in bytes.

        Args:
            rate: of the link in bytes per second, if it is known.
            most: bytes of the longest message that the broker takes.
            known: the size of chunk to wish for until the rate is known, in bytes.
        """
        if self.chunk_kib:
            return chunk_for(None, known=self.chunk_kib * _KIB, most=most)
        return chunk_for(rate, known=known, most=most)
