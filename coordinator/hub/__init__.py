"""Hubs: coordinators to their own devices that are devices to a parent, ``edgepfl hub``.

``service`` and ``run`` are a coordinator's with a parent in place of a person, ``link`` is the connection to the
parent, ``arithmetic`` makes what it is sent, and ``levels`` has the mathematics of a hub with a model of its own.
``relay`` passes devices through instead.  How a parent sees hubs is in :mod:`coordinator.members`.
"""
