"""In which chunks a task's blobs are described, so that the slowest link of its cohort can carry them.

Every device that fetches a blob must ask for the same chunks, or each would be sent once for every size.  So a blob
that was once described in small chunks stays so: it is never described in larger ones while it is known here.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

import msgspec

from edgepfl import wire
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import EdgepflError, WireError
from edgepfl.wire import BlobRef, Task

log = logging.getLogger(__name__)
_MOST = 64  # blobs of which it is known how they were described


class Describer:
    """References of offered blobs, in the size of chunk that a cohort wants.

    Args:
        blobs: where they are.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._described: OrderedDict[str, BlobRef] = OrderedDict()

    def fitted(self, task: Task, wish: int) -> Task:
        """The task with its blobs in chunks of ``wish`` bytes, or unchanged where so many digests do not fit into it.

        Args:
            task: about to be sent.
            wish: bytes of a chunk; one of :data:`~edgepfl.wire.CHUNK_SIZES`.
        """
        bundle, download = self._reference(task.bundle, wish), self._reference(task.download, wish)
        if (bundle, download) == (task.bundle, task.download):
            return task
        finer = msgspec.structs.replace(task, bundle=bundle, download=download)
        try:
            wire.encode(finer)
        except WireError:
            return task
        return finer

    def _reference(self, ref: BlobRef, wish: int) -> BlobRef:
        if ref.inline or not ref.size:
            return ref
        known = self._described.get(ref.sha256)
        if known is None or known.chunk > wish:
            known = ref if ref.chunk == wish else self._anew(ref, wish)
        self._described[ref.sha256] = known
        self._described.move_to_end(ref.sha256)
        while len(self._described) > _MOST:
            self._described.popitem(last=False)
        return known

    def _anew(self, ref: BlobRef, wish: int) -> BlobRef:
        try:
            return self._blobs.ref(ref.sha256, wish)
        except EdgepflError as error:  # whoever asks for it will hear of it
            log.warning("a blob is not described anew: %s", error)
            return ref
