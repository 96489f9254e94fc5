"""How many files a process with many agents needs."""

from __future__ import annotations

import resource

from edgepfl.errors import RunError

PER_AGENT = 6
"""Files that a device keeps open, and one that it opens now and then: a socket, and its store with log and lock."""
PER_LINK = 3
"""Files of a link that goes through the fault proxy, likewise."""
BESIDE = 512


def enough_files(agents: int, links: int = 0) -> None:
    """Let this process open as many files as its agents need.

    Args:
        agents: how many.
        links: those of them whose link goes through the fault proxy.

    Raises:
        RunError: the system does not allow it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = BESIDE + PER_AGENT * agents + PER_LINK * links
    if soft >= wanted:
        return
    most = hard if hard == resource.RLIM_INFINITY else max(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))  # an administrator may go above the hard limit
    except (ValueError, OSError) as error:
        raise RunError(
            f"{agents} agents need {wanted} open files, and the limit is {hard}",
            where="this process",
            remedy="Raise it (ulimit -Hn), emulate fewer agents, or share them among processes (emulate --shard)",
        ) from error
