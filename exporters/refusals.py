"""Operators that no runtime gets a gradient of, each with what to use instead.

A graph without them is refused while it is traced, with the module's name: before an exporter of a runtime fails on a
derived operator that no one has written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

import torch

from edgepfl.errors import ExportError

aten = torch.ops.aten

Overload: TypeAlias = torch._ops.OpOverload[..., Any]  # noqa: SLF001  torch gives the type no public name

_DYNAMIC = "its shape would depend on the data", "Use torch.where, or multiply by a mask"
_COMPLEX = "there are no complex numbers on the runtimes", "Compute the spectrum beforehand and let it be the input"
_LINEAR_ALGEBRA = "no runtime has a gradient of it", "Leave the decomposition of matrices out of the model"
_THREE = "only one and two dimensions are supported", "Fold one axis into the rows, or use nn.Conv3d with a stride"
_SPECIAL = "no runtime has it", "Replace it by elementary functions"
_RANDOM = "it draws random numbers", "Use nn.Dropout for randomness, or set the module to evaluation: module.eval()"

_REFUSED: Mapping[tuple[str, str], tuple[str, ...]] = {
    _DYNAMIC: ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"),
    _COMPLEX: ("_fft_r2c", "_fft_c2r", "_fft_c2c", "view_as_complex", "complex", "polar"),
    _LINEAR_ALGEBRA: (
        "_linalg_det",
        "_linalg_eigh",
        "_linalg_slogdet",
        "_linalg_solve_ex",
        "_linalg_svd",
        "cholesky_inverse",
        "linalg_cholesky_ex",
        "linalg_householder_product",
        "linalg_inv_ex",
        "linalg_lu_factor_ex",
        "linalg_qr",
        "linalg_solve_triangular",
    ),
    _THREE: (
        "_adaptive_avg_pool3d",
        "adaptive_max_pool3d",
        "avg_pool3d",
        "max_pool3d_with_indices",
        "reflection_pad3d",
        "replication_pad3d",
        "upsample_nearest3d",
        "upsample_trilinear3d",
    ),
    _SPECIAL: ("digamma", "i0", "lgamma", "polygamma", "special_i1"),
    _RANDOM: ("rrelu_with_noise", "rrelu_with_noise_functional"),
    ("its gradient is a scatter that no runtime has", "Use nn.Upsample"): ("grid_sampler_2d", "grid_sampler_3d"),
    ("pooling's indices are not kept", "Use nn.Upsample or nn.ConvTranspose2d"): ("max_unpool2d", "max_unpool3d"),
    ("no runtime has it", "Use nn.Embedding and take the mean or the sum yourself"): (
        "_embedding_bag",
        "_embedding_bag_forward_only",
    ),
    ("it writes into its own table", "Set max_norm=None"): ("embedding_renorm_", "embedding_renorm"),
    ("no runtime has it", "Set antialias=False"): ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    ("no runtime has a gradient of it", "Train on aligned labels with a cross-entropy for each step"): (
        "_ctc_loss",
        "_cudnn_ctc_loss",
    ),
    ("no runtime has it", "Write the distance as sums, by broadcasting"): ("_cdist_forward", "_pdist_forward"),
    ("it picks one of the middle elements by sorting", "Use the mean, or amax"): ("median", "nanmedian", "kthvalue"),
}
"""(reason, remedy) to the operators."""


def _refusal(name: str, reason: str, remedy: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise ExportError(f"it cannot be exported: {reason}", where=f"aten.{name}", remedy=remedy)

    return refuse


def _table() -> dict[Overload, Callable[..., NoReturn]]:
    table: dict[Overload, Callable[..., NoReturn]] = {}
    for (reason, remedy), names in _REFUSED.items():
        for name in names:
            packet = getattr(aten, name, None)  # another version of torch may lack one
            for overload in packet.overloads() if packet else ():
                table[getattr(packet, overload)] = _refusal(name, reason, remedy)
    return table


REFUSALS = _table()
"""Operator to what refuses it."""
