"""Whether an upload that is here can be used."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from coordinator import sums
from coordinator.checkpoint import Vault
from coordinator.screen import screen
from coordinator.sums import Form
from edgepfl import codec
from edgepfl.errors import CodecError, EdgepflError, StoreError
from edgepfl.plan import Plan
from edgepfl.secagg.vector import Layout, read
from edgepfl.wire import BlobRef, Report

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Screening:
    """What the uploads of one round must be.

    Attributes:
        run: its id, for the log.
        vault: where the uploads are.
        plan: of the run.
        form: of the sums of hubs.
        max_norm: greatest Euclidean norm of a slot.
        words: the run's codec, by which devices encode their uploads.
        layout: of masked uploads, of which nothing can be seen but their length; None where none is masked.
        claim: told the digest of a decoded upload before it is stored, so that whoever cleans up spares it.
    """

    run: str
    vault: Vault
    plan: Plan
    form: Form
    max_norm: float
    words: str
    claim: Callable[[str], None]
    layout: Layout | None = None

    def screened(self, report: Report) -> tuple[Report, str]:
        """A report as it counts, and why its upload cannot be used: empty where it can, and then it is shared.

        An encoded upload is decoded once, here: what counts refers to it as it is then, so whoever folds it, after a
        restart or in an aggregator, needs to know no codec.  It is for the worker's thread.  Whatever a device sends,
        it must not end the service.

        Raises:
            StoreError: a good upload cannot be shared.
        """
        if report.upload is None:
            return report, ""
        try:
            decoded = self._checked(report, report.upload.sha256)
        except EdgepflError as error:
            return report, str(error)
        except Exception as error:
            log.exception("%s: the upload of %s cannot be screened", self.run, report.device)
            return report, f"{type(error).__name__}: {error}"
        if decoded is None:
            self.vault.private.share(report.upload.sha256)
            return report, ""
        self.claim(hashlib.sha256(decoded).hexdigest())
        return msgspec.structs.replace(report, upload=BlobRef(self.vault.private.keep(decoded), len(decoded))), ""

    def _checked(self, report: Report, sha256: str) -> bytes | None:
        """An encoded upload as it is without a codec; None where it is so already."""
        try:
            data = self.vault.private.read(sha256)
        except StoreError as error:  # its loss costs an attempt, not the service
            raise CodecError(str(error), where=f"upload of {report.device}") from error
        if self.layout is not None:
            read(data, self.layout, where=f"upload of {report.device}")
            return None
        if report.members:
            sums.screen(data, self.form, report, max_norm=self.max_norm)
            return None
        trees = screen(data, self.plan, device=report.device, max_norm=self.max_norm, words=self.words)
        return codec.encode(trees) if self.words else None
