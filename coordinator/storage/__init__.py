"""The store that coordinator, aggregators and hubs share: blobs by the SHA-256 of their bytes, named by a URL.

``depot`` says what such a store does, ``directory`` and ``objects`` do it, ``location`` opens one by its URL, and
``mirrored`` keeps a local store of :mod:`edgepfl.bus.blobs`, which transfers need, and a shared one together.
"""
