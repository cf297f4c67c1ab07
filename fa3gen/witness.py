"""What the traced kernel says of its own parameters, held against abi.py.

The compiler's intermediate form of a kernel names every parameter of its launch, where each comes from, and how each
tensor map is read.  :func:`read` needs the compiler and runs where a kernel is compiled; :func:`differences` does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any

from fa3.contract import Param, ParamKind, TensorMap

from fa3gen import abi
from fa3gen.errors import Fa3genError
from fa3gen.model import ForwardPlan

#: Element types of tensor maps, as the compiler spells them.
_FORMATS = {"BF16_RN": "bf16", "F16_RN": "fp16"}
_SCALARS = {"i32": ParamKind.I32, "i64": ParamKind.I64, "f32": ParamKind.F32}


class WitnessError(Fa3genError):
    """The traced kernel is not built as generated kernels are."""


@dataclass(frozen=True)
class TracedParam:
    """A kernel parameter: its name in ``kernel`` and the argument of ``launch`` that it comes from."""

    name: str
    argument: str
    kind: ParamKind
    tensor_map: TensorMap | None = None


@dataclass(frozen=True)
class Trace:
    """A kernel as it was traced."""

    symbol: str
    params: tuple[TracedParam, ...]
    threads: int
    smem_bytes: int  # dynamic shared memory


def differences(plan: ForwardPlan, trace: Trace) -> list[str]:
    """Where the traced kernel is not what abi.py says of ``plan``; empty where they agree."""
    launch = abi.launch(plan)
    found = [
        f"{what}: abi says {ours}, the kernel has {theirs}"
        for what, ours, theirs in (
            ("symbol", symbol(plan), trace.symbol),
            ("threads", launch.threads, trace.threads),
            ("shared memory", launch.smem_bytes, trace.smem_bytes),
        )
        if ours != theirs
    ]
    params = abi.signature(plan).params
    ours, theirs = [_expected(param) for param in params], list(trace.params)
    if len(ours) != len(theirs):
        found.append(f"abi lists {_names(ours)}; the kernel takes {_names(theirs)}")
        return found
    for ordinal, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        if our != their:
            found.append(f"parameter {ordinal}: abi says {_describe(our)}, the kernel has {_describe(their)}")
    return found


def symbol(plan: ForwardPlan) -> str:
    """The symbol of ``plan``'s kernel in its cubin."""
    return f"{plan.name}_0"


def read(module: Any, kernel_names: Sequence[str], argument_names: Sequence[str]) -> Trace:
    """The launch in a traced ``module`` (MLIR); the names are those of ``kernel``'s and ``launch``'s parameters."""
    launches, kernels, allocations = _find(module)
    if len(launches) != 1 or len(kernels) != 1:
        raise WitnessError(f"`launch` launches {len(launches)} kernels; it must launch one")
    values = list(launches[0].operands)[1:]  # the first is the configuration
    if len(values) != len(kernel_names):
        raise WitnessError(f"the kernel takes {len(values)} values for its {len(kernel_names)} parameters")
    params = [_param(value, name, argument_names) for value, name in zip(values, kernel_names, strict=True)]
    attributes = kernels[0].attributes
    name = str(attributes["sym_name"]).strip('"')
    threads = prod(_numbers(attributes["nvvm.reqntid"]))
    return Trace(name, tuple(params), threads, _smem(allocations))


def _expected(param: Param) -> TracedParam:
    kind, _, rest = param.source.partition(":")
    argument = rest if kind in ("tensor", "workspace") else param.name
    return TracedParam(param.name, argument, param.kind, param.tensor_map)


def _names(params: Sequence[TracedParam]) -> str:
    return ", ".join(param.name for param in params)


def _describe(param: TracedParam) -> str:
    text = f"{param.name} ({param.kind.value}) from {param.argument}"
    if param.tensor_map is not None:
        tm = param.tensor_map
        text += f", axes {tm.axes}, box {tm.box}, {tm.dtype}, {tm.swizzle_bytes}-byte swizzle"
    return text


def _find(module: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Launches, kernels and allocations of shared memory."""
    ir = _mlir()
    found: dict[str, list[Any]] = {"cuda.launch_ex": [], "cuda.kernel": [], "cute.memref.alloca": []}

    def visit(op: Any) -> Any:
        if op.name in found:
            found[op.name].append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    launches, kernels, allocations = found.values()
    return launches, kernels, [op for op in allocations if "smem.struct_fields" in op.attributes]


def _mlir() -> Any:
    """The compiler's binding of MLIR, which has no types."""
    return import_module("cutlass._mlir.ir")


def _smem(allocations: Sequence[Any]) -> int:
    """Bytes up to the end of the last field of the one structure that a kernel keeps in shared memory."""
    if not allocations:
        return 0
    if len(allocations) > 1:
        raise WitnessError(f"the kernel allocates shared memory {len(allocations)} times; it must do so once")
    fields = re.findall(r'"\w+:(\d+):(\d+)"', str(allocations[0].attributes["smem.struct_fields"]))
    return max(int(size) + int(offset) for size, offset in fields)


def _param(value: Any, name: str, argument_names: Sequence[str]) -> TracedParam:
    value = _unwrap(value)
    type_text = str(value.type)
    if type_text in _SCALARS:
        number = _argument(value)
        if number is None:
            raise WitnessError(f"parameter {name} is computed by {value.owner.name}: `launch` must pass it as it is")
        return TracedParam(name, argument_names[number], _SCALARS[type_text])
    if type_text.startswith("!cute.ptr<"):
        argument, _ = _origin(value, name)
        return TracedParam(name, argument_names[argument], ParamKind.POINTER)
    if "tma_" in type_text:
        argument, tensor_map = _tensor_map(value, name)
        return TracedParam(name, argument_names[argument], ParamKind.TENSORMAP, tensor_map)
    raise WitnessError(f"parameter {name} is a {type_text}: kernels take tensor maps, pointers, i32, i64 and f32")


def _tensor_map(value: Any, name: str) -> tuple[int, TensorMap]:
    """The argument and the tensor map that a TMA atom stands for."""
    basis = re.search(r'tma_gbasis = <"\(([\d,]+)\):\(((?:1@\d+,?)+)\)">, tma_format = (\w+)', str(value.type))
    if basis is None or basis[3] not in _FORMATS:
        raise WitnessError(f"parameter {name}: a tensor map of an unknown kind, {value.type}")
    tensor, layout = (_unwrap(operand) for operand in list(value.owner.operands)[:2])
    argument, modes = _origin(tensor, name)
    box = tuple(int(number) for number in basis[1].split(","))
    dims = [int(number) for number in re.findall(r"@(\d+)", basis[2])]
    axes = tuple(modes[dim] if modes else dim for dim in dims)
    return argument, TensorMap(axes, box, _FORMATS[basis[3]], _swizzle_bytes(str(layout.type), name))


def _swizzle_bytes(layout: str, name: str) -> int:
    """The span of the swizzle of a shared memory layout; 0 where it has none."""
    if layout.startswith("!cute.layout<"):
        return 0
    found = re.search(r'<"S<(\d),4,3> o 0 o ', layout)
    if found is None:
        raise WitnessError(f"parameter {name}: a swizzle that no tensor map has, {layout}")
    return 16 << int(found[1]) if found[1] != "0" else 0


def _origin(value: Any, name: str) -> tuple[int, list[int]]:
    """The argument that a view or pointer is made of, and the argument's axis that each mode of the view is.

    The axes are empty where the value is the argument itself.
    """
    value = _unwrap(value)
    number = _argument(value)
    if number is not None:
        return number, []
    op = value.owner
    operands = [_unwrap(operand) for operand in op.operands]
    if op.name in ("cute.get_iter", "cute.get_layout"):
        return _origin(operands[0], name)
    if op.name == "cute.select":
        argument, modes = _origin(operands[0], name)
        selected = _numbers(op.attributes["mode"])
        return argument, [modes[mode] for mode in selected] if modes else selected
    if op.name == "cute.make_view":
        pointer, layout = _origin(operands[0], name), _origin(operands[1], name)
        if pointer[0] != layout[0]:
            raise WitnessError(f"parameter {name} has the address of one argument and the layout of another")
        return layout
    raise WitnessError(f"parameter {name} is made by {op.name}: `launch` may only select axes of its arguments")


def _argument(value: Any) -> int | None:
    """The number of the argument of ``launch`` that ``value`` is; ``None`` where it is computed."""
    ir = _mlir()
    return int(ir.BlockArgument(value).arg_number) if isinstance(value.owner, ir.Block) else None


def _unwrap(value: Any) -> Any:
    """The MLIR value inside the objects that the compiler gives for some types."""
    while not hasattr(value, "owner"):
        value = value.value if hasattr(value, "value") else value.ir_value()
    return value


def _numbers(attribute: Any) -> list[int]:
    """``array<i32: 1, 3, 2, 0>`` as a list."""
    return [int(number) for number in re.findall(r"-?\d+", str(attribute).partition(":")[2])]
