"""``fa3gen explain``"""

from __future__ import annotations

from pathlib import Path

import click
from fa3 import choice, contract, explanation
from fa3.contract import Extents, ManifestError

from fa3gen.cli import common
from fa3gen.errors import ExitCode, UsageError
from fa3gen.model import DType, HeadDim


@click.command()
@click.option(
    "--bundle",
    type=click.Path(path_type=Path, file_okay=False),
    default=common.BUILD_DIR / "bundle",
    show_default=True,
    help="The bundle to choose from.",
)
@click.option(
    "--dtype",
    type=click.Choice([dtype.value for dtype in DType]),
    default=DType.BF16.value,
    show_default=True,
    help="Of q, k and v.",
)
@click.option("--head-dim", required=True, metavar="DIM", help="Of q, k and v: 128; or of q and k, and of v: 192x128.")
@click.option("--seqlen-q", type=click.IntRange(0), required=True, help="Queries of a sequence.")
@click.option("--seqlen-k", type=click.IntRange(0), help="Keys of a sequence; by default as many as queries.")
@click.option("--heads-q", type=click.IntRange(1), required=True, help="Heads of q, a multiple of those of k.")
@click.option("--heads-k", type=click.IntRange(1), help="Heads of k and v; by default as many as of q.")
@click.option("--batch", type=click.IntRange(0), default=1, show_default=True, help="Sequences.")
@click.option("--causal/--no-causal", default=False, show_default=True, help="The mask, aligned bottom right.")
@common.json_option
def command(
    bundle: Path,
    dtype: str,
    head_dim: str,
    seqlen_q: int,
    seqlen_k: int | None,
    heads_q: int,
    heads_k: int | None,
    batch: int,
    causal: bool,
    as_json: bool,
) -> int:
    """Show which kernel of a bundle a call would take and why, or what is missing, as fa3.runtime.explain does.

    Exits with 1 where there is no kernel for the call.
    """
    seqlen_k = seqlen_q if seqlen_k is None else seqlen_k
    heads_k = heads_q if heads_k is None else heads_k
    if heads_q % heads_k:
        raise UsageError(f"--heads-q {heads_q} is no multiple of --heads-k {heads_k}")
    dims = _head_dim(head_dim)
    key = choice.forward_key(dtype, dims.qk, dims.v, causal)
    found = _explain(bundle, key, Extents(batch, seqlen_q, seqlen_k, heads_q, heads_k))
    common.print_json(found.to_json()) if as_json else click.echo(str(found))
    return ExitCode.FINDINGS if found.kernel is None else ExitCode.OK


def _head_dim(text: str) -> HeadDim:
    try:
        return HeadDim.parse(text)
    except ValueError as error:
        raise UsageError(f"--head-dim: {error}") from error


def _explain(bundle: Path, key: contract.Key, extents: Extents) -> explanation.Explanation:
    manifest = common.read_manifest(bundle)
    try:
        kernels = contract.plans_by_key(manifest.kernels)
    except ManifestError as error:
        raise UsageError(f"{bundle}: {error}", hint="run `fa3gen build`, or name a bundle with --bundle") from error
    return explanation.explain(kernels, key, extents, str(bundle), manifest.arch)
