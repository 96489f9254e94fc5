"""The command ``edgepfl export``."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgepfl import algorithms, bundle
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError
from edgepfl.plan import Entry, Shape

_EPILOG = """\
examples:
  edgepfl export --model exporters.zoo:cnn1d --algorithm ditto -o watch.bundle
  edgepfl export --model my_models:make_net --input 6,100 --classes 7 \\
      --algorithm fedper --personal 'head.*' --set lr=0.1 -o watch.bundle

--model names a function or class that takes no arguments and gives a torch.nn.Module
for inputs of shape (batch, *input).  It may instead give an exporters.model.Model,
which knows its own --input and --classes.

The hyperparameters that an algorithm annotates as Scalar (lr, lam, ...) stay inputs of
the graphs: --set only gives their defaults, and a run may change them without a new export.
"""


def main(argv: Sequence[str]) -> int:
    """Run ``edgepfl export``.

    Args:
        argv: the arguments after ``export``.

    Returns:
        The exit status.

    Raises:
        EdgepflError: what is wrong, for the command line to tell.
    """
    arguments = _parser().parse_args(argv)
    made = _export(arguments)
    data = bundle.pack(made)
    _write(arguments.output, data)
    _tell(made, data, arguments.output)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="edgepfl export",
        description="Turn a model and an algorithm into the bundle that devices train from.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, metavar="MODULE:FACTORY", help="what makes the model, such as exporters.zoo:cnn1d")
    add("--algorithm", required=True, metavar="NAME", help=f"one of {', '.join(algorithms.names())}")
    add("-o", "--output", required=True, type=Path, metavar="FILE", help="the bundle to write")
    add("--input", type=_sizes, metavar="SIZES", help="shape of one example, such as 6,100")
    add("--classes", type=int, metavar="N", help="number of classes")
    add("--loss", default="cross_entropy", metavar="NAME", help="the loss (default: %(default)s)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a hyperparameter; may be repeated")
    add(
        "--personal",
        action="append",
        default=[],
        metavar="PATTERN",
        help="parameters that stay on the device, such as 'head.*'; may be repeated",
    )
    add("--batch", type=int, default=16, metavar="N", help="rows of a minibatch (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the initial parameters (default: %(default)s)")
    add("--quiet", action="store_true", help="tell nothing but errors")
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not sizes separated by commas, such as 6,100") from None


def _export(arguments: argparse.Namespace) -> Bundle:
    algorithm = algorithms.build(arguments.algorithm, algorithms.parse_settings(arguments.set))
    if not arguments.output.absolute().parent.is_dir():
        raise ConfigError("the folder to write to does not exist", where=str(arguments.output))
    # torch takes seconds to import, and --help needs none of it.
    from exporters.build import build  # noqa: PLC0415  see above
    from exporters.source import load_model  # noqa: PLC0415  see above

    model = load_model(
        arguments.model,
        input_shape=arguments.input,
        classes=arguments.classes,
        batch=arguments.batch,
        loss=arguments.loss,
        personal=tuple(arguments.personal),
        seed=arguments.seed,
    )
    if not arguments.personal and any(slot.shape is Shape.PERSONAL for slot in algorithm.slots.values()):
        raise ConfigError(
            f"{arguments.algorithm} keeps a part of the model on the device, and none is named",
            where="--personal",
            remedy=f"Name it with patterns; the model has {', '.join(model.specs)}",
        )
    return build(algorithm, model, progress=None if arguments.quiet else _progress)


def _progress(stage: str, entry: Entry) -> None:
    print(f"{stage:>6} {entry}", file=sys.stderr)


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                temporary.chmod(0o644)  # NamedTemporaryFile's is 0o600
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigError(f"it cannot be written ({error.strerror})", where=str(path)) from error


def _tell(made: Bundle, data: bytes, path: Path) -> None:
    plan = made.plan
    graphs = sum(len(graph) for graph in made.graphs["onnx"].values())
    parameters = sum(spec.size for spec in plan.model.values())
    print(
        f"{path}: {plan.algorithm} on {plan.title}, {parameters:,} parameters, {len(plan.graphs)} graphs "
        f"({graphs:,} bytes), {len(data):,} bytes in all, sha256 {hashlib.sha256(data).hexdigest()[:16]}"
    )
