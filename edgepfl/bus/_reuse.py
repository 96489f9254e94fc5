"""Chunks that are here already, as parts of other blobs.

Equal plans give equal layouts, and a safetensors file holds its tensors in one order: what a round left as it was, a
frozen base or a personal head, has the same bytes at the same place in the next download, and so the same digests.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgepfl.bus._files import storing, write_at
from edgepfl.bus._window import DIGEST, Fetch
from edgepfl.bus.blobs import BlobStore
from edgepfl.errors import StoreError
from edgepfl.wire import BlobRef


class Stock:
    """What the chunks of a store's blobs are, by digest.

    Args:
        blobs: the store.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._known: dict[str, BlobRef] = {}

    def learn(self, ref: BlobRef) -> None:
        """Remember what a blob's chunks are, now that it is here: so that it need not be read for it."""
        self._known[ref.sha256] = ref

    def fill(self, fetch: Fetch) -> Fetch:
        """Copy the missing chunks that are here into the blob's part, each verified; one at a time is in memory.

        Raises:
            StoreError: the part cannot be written.
        """
        part = self._blobs.part(fetch.ref.sha256)
        for source in self._sources(fetch.ref.chunk):
            places = {source.chunks[at : at + DIGEST]: at // DIGEST for at in range(0, len(source.chunks), DIGEST)}
            for index, place in _matches(fetch, places):
                data = self._read(source, place)
                if fetch.accepts(index, data):
                    with storing(part):
                        write_at(part, index * fetch.ref.chunk, data)
                    fetch = fetch.found(index)
        return fetch

    def _sources(self, chunk: int) -> Iterator[BlobRef]:
        """Every whole blob of the store in chunks of this size; blobs of which it is not known are read for it."""
        here = self._blobs.whole()
        self._known = {sha256: ref for sha256, ref in self._known.items() if sha256 in here}
        for sha256 in sorted(here):
            known = self._known.get(sha256)
            try:
                if known is None or known.chunk != chunk:
                    known = self._known[sha256] = self._blobs.ref(sha256, chunk)
            except StoreError:  # damaged, or gone meanwhile: whoever needs it will hear of it
                continue
            if known.chunk == chunk:
                yield known

    def _read(self, source: BlobRef, index: int) -> bytes:
        path = self._blobs.path(source.sha256)
        try:
            with storing(path), path.open("rb") as file:
                file.seek(index * source.chunk)
                return file.read(source.chunk)
        except StoreError:
            return b""


def _matches(fetch: Fetch, places: dict[bytes, int]) -> list[tuple[int, int]]:
    """(missing chunk, its place in the other blob)."""
    chunks, missing = fetch.ref.chunks, fetch.missing
    found = []
    for index in range(len(chunks) // DIGEST):
        place = places.get(chunks[index * DIGEST : (index + 1) * DIGEST])
        if place is not None and missing >> index & 1:
            found.append((index, place))
    return found
