"""``fa3gen inspect``"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from fa3.contract import Param

from fa3gen import abi, build, bundle, loops, sass
from fa3gen.arch import ARCHS
from fa3gen.arch.budget import CLOCK_MHZ
from fa3gen.axes import AXES, spelled
from fa3gen.build import CUBIN, PTX, KernelBuild, Paths
from fa3gen.cli import common
from fa3gen.digest import sha256
from fa3gen.errors import Fa3genError, UsageError
from fa3gen.model import ForwardPlan
from fa3gen.plan import PLAN_FIELDS, resolve_all


@click.command()
@click.argument("name")
@common.config_option
@common.build_dir_option
@click.option("--source", "view", flag_value="source", help="Print the generated source.")
@click.option("--ptx", "view", flag_value="ptx", help="Print the PTX.")
@click.option("--sass", "view", flag_value="sass", help="Print the machine code.")
@common.json_option
@common.verbosity_options
def command(
    name: str, config: Path, build_dir: Path, view: str | None, as_json: bool, verbose: bool, quiet: bool
) -> None:
    """Show the kernel NAME: its plan with reasons, parameters, digests and what the compiler made of it."""
    selection = common.load(config, (name,))
    plans = [plan for plan in selection.plans if plan.name == name] or selection.plans  # a variant's name is exact
    if len(plans) != 1:
        names = ", ".join(plan.name for plan in plans)
        raise UsageError(f"{name!r} selects {len(plans)} kernels: {names}", hint="name one of them")
    (kernel,) = build.prepare(plans, Paths.under(build_dir), selection.matrix.toolchain)
    if view is not None:
        click.echo(_view(kernel, view), nl=False)
        return
    document = _document(kernel)
    if as_json:
        common.print_json(document)
    elif not quiet:
        _print(document, kernel, verbose)


def _view(kernel: KernelBuild, view: str) -> str:
    if view == "source":
        return kernel.source
    if kernel.stored is None:
        raise Fa3genError(f"{kernel.name} is not built: {kernel.reason}", hint=f"fa3gen build {kernel.name}")
    return kernel.stored.read(PTX).decode() if view == "ptx" else sass.disassemble(kernel.stored.read(CUBIN))


def _document(kernel: KernelBuild) -> dict[str, Any]:
    """Everything known of a kernel, as JSON."""
    plan = kernel.plan
    signature = abi.signature(plan)
    document: dict[str, Any] = {
        "name": kernel.name,
        "origin": str(plan.variant.origin),
        "variant": {axis: spelled(getattr(plan.variant, axis)) for axis in AXES},
        "when": common.when_json(plan),
        "plans": [other.name for other in resolve_all(plan.variant)],
        "plan": plan.to_json(),
        "tensors": signature.tensors,
        "optional": signature.optional,
        "scalars": signature.scalars,
        "params": [_param(param) for param in signature.params],
        "launch": asdict(abi.launch(plan)),
        "digests": {"kernel": kernel.digest, **{key: kernel.inputs[key] for key in ("source", "device", "abi")}},
        "options": kernel.inputs["options"],
        "budget": _budget(plan),
        "built": kernel.stored is not None,
        "why_not_built": kernel.reason,
    }
    return document | _built(kernel)


def _built(kernel: KernelBuild) -> dict[str, Any]:
    """What the compiler made of a kernel; empty where it is not built."""
    if kernel.stored is None or kernel.resources is None:
        return {}
    cubin = kernel.stored.read(CUBIN)
    digest = sha256(cubin)
    text = sass.disassemble(cubin) if sass.find_tool() else None
    return {
        "cubin_sha256": digest,
        "cubin_bytes": len(cubin),
        "toolchain": {
            "toolchain": kernel.inputs["toolchain"],
            "cuda": kernel.stored.meta["cuda_version"],
            **kernel.inputs["distributions"],
        },
        "resources": kernel.resources.to_json(),
        "remarks": kernel.stored.meta["remarks"],
        "sass": asdict(sass.count(text)) if text else None,
        "mainloop": _mainloop(kernel.plan, text) if text else None,
        "verified": bundle.verified(common.load_evidence(), kernel.name, digest),
    }


def _budget(plan: ForwardPlan) -> dict[str, Any]:
    """What a step takes of each unit of an SM, and how fast that makes the kernel at most."""
    found = ARCHS[plan.variant.arch].budget(plan)
    return {
        "clocks": dict(found.clocks),
        "binding": found.binding,
        "predicted": found.predicted,
        "clock_mhz": CLOCK_MHZ,
        "tflops": round(found.tflops(), 1),
        "instructions": dict(found.instructions),
    }


def _mainloop(plan: ForwardPlan, text: str) -> dict[str, Any]:
    """A step as it was compiled, and every loop with WGMMAs."""
    found = [
        {
            "at": loop.address,
            "masked": loop.masked,
            "instructions": len(loop.always),
            "sometimes": len(loop.sometimes),
            "exponentials": loop.exponentials,
            "under_pv": loop.under_pv,
            "barrier_waits": loop.barrier_waits,
            "local": loop.local,
        }
        for loop in loops.loops(text)
    ]
    try:
        step = loops.compare(plan, text)
    except loops.CodeError as error:
        return {"loops": found, "problems": [str(error)]}
    return {
        "instructions": {kind: made for kind, (made, _) in step.instructions.items()},
        "total": step.made,
        "repacking": step.repacking,
        "under_pv": step.exponentials[0],
        "exponentials": step.exponentials[1],
        "loops": found,
        "problems": list(step.problems),
    }


def _param(param: Param) -> dict[str, Any]:
    found: dict[str, Any] = {"name": param.name, "kind": param.kind.value, "source": param.source}
    if param.tensor_map is not None:
        found["tensor_map"] = asdict(param.tensor_map)
    return found


def _print(document: dict[str, Any], kernel: KernelBuild, verbose: bool) -> None:
    click.echo(f"{document['name']}  ({document['origin']})\n")
    _print_pairs("variant", document["variant"])
    click.echo("plan")
    reasons = {reason.split(" ", 1)[0]: reason for reason in kernel.plan.reasons}
    for name in PLAN_FIELDS:
        click.echo(f"  {reasons.get(name) or f'{name} {spelled(getattr(kernel.plan, name))}'}")
    _print_dispatch(document, kernel)
    optional = document["optional"]
    tensors = [f"[{name}]" if name in optional else name for name in document["tensors"]]
    click.echo(f"\ncall  {', '.join((*tensors, *document['scalars']))}")
    common.print_table(("  PARAMETER", "KIND", "SOURCE", "TENSOR MAP"), [_cells(p) for p in document["params"]])
    click.echo()
    _print_pairs("launch", document["launch"])
    _print_digests(document, verbose)
    _print_budget(document)
    if not document["built"]:
        click.echo(f"not built: {document['why_not_built']}\n  next: fa3gen build {document['name']}")
        return
    resources = document["resources"] | {"advisories": " ".join(document["resources"]["advisories"]) or "none"}
    _print_pairs("resources", resources)
    counts = document["sass"]
    _print_pairs("machine code", counts) if counts else click.echo(f"machine code: pip install {sass.WHEEL}\n")
    if document["mainloop"]:
        _print_mainloop(document["mainloop"])
    click.echo("remarks of ptxas")
    for remark in document["remarks"]:
        click.echo(f"  {remark}")
    verified = document["verified"]
    click.echo(f"\nverified  {verified['device']}, {verified['date']}" if verified else "\nverified  no")


def _print_dispatch(document: dict[str, Any], kernel: KernelBuild) -> None:
    """Which calls take the kernel, where its variant has several."""
    if len(document["plans"]) > 1:
        click.echo(f"\nwhen  {kernel.plan.when or 'no other plan fits'}")
        click.echo(f"plans {', '.join(document['plans'])}: a call takes the first that it fits")


def _print_digests(document: dict[str, Any], verbose: bool) -> None:
    digests = dict(document["digests"])
    device = digests.pop("device")
    if verbose:
        digests |= {f"device {name}": digest for name, digest in device.items()}
    else:
        digests["device"] = f"{len(device)} modules"
    if document["built"]:
        digests["cubin"] = f"{document['cubin_sha256']}  ({document['cubin_bytes']} bytes)"
        digests["toolchain"] = ", ".join(f"{key} {value}" for key, value in document["toolchain"].items())
    _print_pairs("digests", digests)


def _print_budget(document: dict[str, Any]) -> None:
    """A step's clocks by unit; beside the instructions of the budget those of the code, where it can be read."""
    budget, made = document["budget"], (document.get("mainloop") or {}).get("instructions")
    click.echo(f"budget of a step, {document['plan']['tile_m']} x {document['plan']['tile_n']} scores")
    rows = [
        (f"  {unit}", f"{clocks:.0f}", f"{clocks / budget['predicted']:.2f}{' binding' * (unit == budget['binding'])}")
        for unit, clocks in budget["clocks"].items()
    ]
    common.print_table(("  UNIT", "CLOCKS", "SHARE"), rows)
    click.echo(f"  at most {budget['tflops']:.0f} TFLOP/s at {budget['clock_mhz']:.0f} MHz\n")
    wanted = dict(budget["instructions"])
    wanted["all"] = sum(wanted.values())
    if made:
        made = {**made, "all": document["mainloop"]["total"]}
    rows = [(f"  {kind}", str(n), f"{made[kind]:g}" if made else "") for kind, n in wanted.items()]
    common.print_table(("  INSTRUCTIONS", "BUDGET", "CODE" if made else ""), rows)
    click.echo()


def _print_mainloop(found: dict[str, Any]) -> None:
    click.echo("mainloop")
    if "total" in found:
        click.echo(f"  {found['under_pv']} of {found['exponentials']} exponentials run under PV")
        if found["repacking"]:
            click.echo(f"  {found['repacking']:g} instructions a step only put P together again")
    for loop in found["loops"]:
        kind = "masked" if loop["masked"] else "unmasked"
        click.echo(
            f"  {kind} loop: {loop['instructions']} instructions and at times {loop['sometimes']} more,"
            f" {loop['under_pv']} of {loop['exponentials']} exponentials under PV,"
            f" {loop['barrier_waits']} waits for barriers, {loop['local']} spills"
        )
    click.echo(f"  against the budget: {'; '.join(found['problems']) or 'ok'}\n")


def _print_pairs(title: str, pairs: dict[str, Any]) -> None:
    click.echo(title)
    width = max(map(len, pairs))
    for key, value in pairs.items():
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        click.echo(f"  {key.ljust(width)}  {text}")
    click.echo()


def _cells(param: dict[str, Any]) -> tuple[str, ...]:
    tensor_map = param.get("tensor_map")
    text = ""
    if tensor_map:
        axes, box = (",".join(map(str, tensor_map[key])) for key in ("axes", "box"))
        text = f"axes {axes}  box {box}  {tensor_map['dtype']}  swizzle {tensor_map['swizzle_bytes']}"
    return f"  {param['name']}", param["kind"], param["source"], text
