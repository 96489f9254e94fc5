"""The same job in other systems' simulators: programs that run in environments of their own, without edgepfl.

They are copied with this folder's names and run as modules; they import nothing but :mod:`~.common`, torch, NumPy and
the peer.
"""
