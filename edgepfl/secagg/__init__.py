"""Secure aggregation: the coordinator learns the sum of a cohort's uploads and no single one.

The protocol is SecAgg+ (Bell, Bonawitz, Gascon, Lepoint, Raykova 2020, https://eprint.iacr.org/2020/704), which is that
of Bonawitz et al. 2017 (https://eprint.iacr.org/2017/281) on a sparse random graph, against an honest-but-curious
coordinator::

    terms       what a task says of it
    fixed       real numbers as whole numbers of 32 or 64 bits, so that sums are exact and masks hide everything
    vector      the UP slots of a plan as one vector of such numbers
    graph       who exchanges masks with whom, and how many shares open a secret
    shamir      secrets in shares
    primitives  X25519, HKDF, ChaCha20 and ChaCha20-Poly1305, all of them by ``cryptography``
    messages    what devices and coordinator say to each other
    device      the device's side, as a pure machine
    server      the coordinator's, likewise
    answers     what the devices revealed
    masks       the seeds of masks, and sealed shares
    opening     the masks that are left in a sum, from what the devices revealed

Nothing here does I/O.  Only ``primitives``, and what imports it, needs ``cryptography``.
"""
