"""The command ``edgepfl export``."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgepfl import algorithms, bundle, presets
from edgepfl.algorithms import Algorithm
from edgepfl.bundle import Bundle
from edgepfl.errors import ConfigError
from edgepfl.plan import Entry, ExampleSpec, Plan
from exporters.named import read

_BATCH = 16

_EPILOG = """\
examples:
  edgepfl export --model exporters.zoo:cnn1d --algorithm ditto -o watch.bundle
  edgepfl export --model my_models:make_net --input 6,100 \\
      --algorithm fedper --personal 'head.*' --set lr=0.1 -o watch.bundle
  edgepfl export --model torchvision.models:squeezenet1_1 --model-arg num_classes=10 \\
      --input 3,32,32 --algorithm fedavg --runtimes onnx,executorch -o pictures.bundle
  edgepfl export --model my_models:Forecast --input 24,3 --input 8:int64 --loss huber --metric mae \\
      --algorithm apfl -o forecast.bundle
  edgepfl export --model exporters.zoo:mlp --model-arg inputs=784 --model-arg 'hidden=()' \\
      --preset pfedme/mnist-mclr -o softmax.bundle

--model names a function or class that gives a torch.nn.Module, or an exporters.model.Model,
which knows its own inputs and loss.  The module is called with one minibatch of each --input,
in their order.  An input is the shape of one example, then its type, float32 unless said,
and of int64 how many values there are: 20:int64:1000 is 20 numbers from 0 to 999.

A --model-arg is a number, list, quoted text or None as in Python; or torch.nn:GELU for that
class; or 'transformers:BertConfig(hidden_size=32)' for what it gives; or else text.

--loss is cross_entropy (outputs are logits of shape classes or classes,positions, targets
are classes), mse, huber or bce (targets are numbers of the outputs' shape; of bce from 0
to 1), or a function of yours that gives a loss for each example: (outputs, targets) ->
(batch,).  --metric is likewise judged on each device's test data: accuracy,
binary_accuracy, mae, mse, or a function.

The module trains in the mode it is in: what it set to .eval() stays so.  Running statistics
of batch normalisation travel with the parameters; --personal 'bn*' keeps them on the device.

The hyperparameters that an algorithm annotates as Scalar (lr, lam, ...) stay inputs of
the graphs: --set only gives their defaults, and a run may change them without a new export.

edgepfl algorithms lists the algorithms, edgepfl algorithms NAME tells of one and its
hyperparameters, edgepfl algorithms --presets lists the published ones.  A --preset stands
for --algorithm, --set and --batch, any of which wins over it.

docs/models.md tells more, docs/layers.md which layers export.
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
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.algorithm is None and arguments.preset is None:
        parser.error("one of --algorithm and --preset is required")
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
    add("--algorithm", metavar="NAME", help=f"one of {', '.join(algorithms.names())}")
    add("--preset", metavar="NAME", help="published hyperparameters, such as pfedme/mnist-mclr")
    add("-o", "--output", required=True, type=Path, metavar="FILE", help="the bundle to write")
    add(
        "--input",
        action="append",
        default=[],
        type=_spec,
        metavar="SHAPE[:TYPE[:VALUES]]",
        help="what one example has of an input, such as 6,100 or 20:int64; once for each input",
    )
    add("--target", type=_spec, metavar="SHAPE[:TYPE]", help="what it has of the target, where the loss does not tell")
    add("--loss", metavar="NAME", help="cross_entropy (the default), mse, huber, bce or MODULE:FUNCTION")
    add("--metric", action="append", default=[], metavar="NAME", help="reported besides the loss; may be repeated")
    add(
        "--model-arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an argument of the factory; may be repeated",
    )
    add("--weights", type=Path, metavar="FILE", help="initial parameters: a .safetensors file or a state_dict")
    add(
        "--runtimes",
        type=lambda text: tuple(text.split(",")),
        default=("onnx",),
        metavar="NAMES",
        help="onnx, executorch or both with a comma between (default: onnx)",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a hyperparameter; may be repeated")
    add(
        "--personal",
        action="append",
        default=[],
        metavar="PATTERN",
        help="parameters that stay on the device, such as 'head.*'; may be repeated",
    )
    add("--batch", type=int, metavar="N", help=f"rows of a minibatch (default: the preset's, or {_BATCH})")
    add("--seed", type=int, default=0, metavar="N", help="seed of the initial parameters (default: %(default)s)")
    add("--quiet", action="store_true", help="tell nothing but errors")
    return parser


def _spec(text: str) -> ExampleSpec:
    shape, _, kind = text.partition(":")
    dtype, _, high = kind.partition(":")
    try:
        sizes = tuple(int(part) for part in shape.split(",") if part)
        return ExampleSpec(sizes, dtype or "float32", high=int(high or 0))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 6,100 or 20:int64:1000 ({error})") from None


def _arguments(texts: Sequence[str]) -> dict[str, object]:
    """``KEY=VALUE`` s of a factory."""
    arguments: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{text!r} is not KEY=VALUE", where="--model-arg")
        arguments[key] = read(value, f"--model-arg {key}")
    return arguments


def _chosen(arguments: argparse.Namespace) -> tuple[Algorithm, int]:
    """The algorithm and the rows of a minibatch: what the command line says, else what the preset does."""
    settings, batch = algorithms.parse_settings(arguments.set), arguments.batch
    if arguments.preset is None:
        return algorithms.build(arguments.algorithm, settings), _BATCH if batch is None else batch
    preset = presets.load(arguments.preset)
    if arguments.algorithm not in {None, preset.algorithm}:
        raise ConfigError(
            f"{arguments.preset} is of {preset.algorithm}, not of {arguments.algorithm}",
            where="--preset",
            remedy="Leave --algorithm out",
        )
    algorithm = algorithms.build(preset.algorithm, {**preset.settings, **settings})
    return algorithm, (preset.batch or _BATCH) if batch is None else batch


def _export(arguments: argparse.Namespace) -> Bundle:
    algorithm, batch = _chosen(arguments)
    if not arguments.output.absolute().parent.is_dir():
        raise ConfigError("the folder to write to does not exist", where=str(arguments.output))
    # torch takes seconds to import, and --help needs none of it.
    from exporters.build import build  # noqa: PLC0415  see above
    from exporters.fitting import fitted  # noqa: PLC0415  see above
    from exporters.source import Wanted, load_model  # noqa: PLC0415  see above

    wanted = Wanted(
        path=arguments.model,
        arguments=_arguments(arguments.model_arg),
        inputs=arguments.input,
        target=arguments.target,
        loss=arguments.loss,
        metrics=tuple(arguments.metric),
        batch=batch,
        personal=tuple(arguments.personal),
        seed=arguments.seed,
        weights=arguments.weights,
    )
    model = fitted(algorithm, load_model(wanted), seed=arguments.seed)
    return build(algorithm, model, runtimes=arguments.runtimes, progress=None if arguments.quiet else _progress)


def _progress(stage: str, entry: Entry) -> None:
    print(f"{stage:>10} {entry}", file=sys.stderr)


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
    sizes = ", ".join(f"{runtime} {sum(map(len, files.values())):,}" for runtime, files in made.graphs.items())
    parameters = sum(spec.size for spec in plan.model.values())
    print(
        f"{path}: {plan.algorithm} on {plan.title}, {parameters:,} parameters, {len(plan.graphs)} graphs "
        f"(bytes: {sizes}), {len(data):,} bytes in all, sha256 {hashlib.sha256(data).hexdigest()[:16]}"
    )
    print(f"an example: {_border(plan)}")


def _border(plan: Plan) -> str:
    """What goes in and what is learned: a wrong loss for the outputs shows here."""
    inputs = " and ".join(f"{spec.dtype}{list(spec.shape)}" for spec in plan.batch.x)
    target = plan.batch.y
    if target.dtype != "int64":
        return f"{inputs} -> {target.dtype}{list(target.shape)}"
    places = f" at each of {list(target.shape)}" if target.shape else ""
    return f"{inputs} -> one of {target.high} classes{places}"
