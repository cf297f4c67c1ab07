"""Compiling: digests, worker processes, what fails a kernel, and every shipped kernel against its plan and abi.py."""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from fa3.contract import Param, ParamKind, TensorMap

from fa3gen import abi, sass, toolchain, witness, worker
from fa3gen import compile as compiler
from fa3gen.digest import canonical, sha256
from fa3gen.errors import Fa3genError, MachineError
from fa3gen.model import Arch, Bounds, ForwardPlan, parse_name
from fa3gen.plan import resolve
from fa3gen.render import render
from fa3gen.witness import Trace, TracedParam
from fa3gen.worker import Compiled, Failed, Job
from tests.built_kernels import ALTERNATIVES, NAME, REPO, Built, built, plan_of, plans

OPTIONS = compiler.OPTIONS[Arch.SM90A]

#: A kernel of a pointer, an integer and a float; `{n}` is what `launch` passes for the integer.
SMALL = """
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor


@cute.kernel
def kernel(out: cute.Pointer, n: Int32, scale: Float32):
    thread, _, _ = cute.arch.thread_idx()
    if thread < n:
        cute.make_tensor(out, cute.make_layout((128,)))[thread] = scale


@cute.jit
def launch(out: cute.Tensor, n: Int32, scale: Float32, stream):
    kernel.set_name_prefix("small", remove_cutlass_symbol=True, keep_mangled_name=False)
    kernel(out.iterator, {n}, scale).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream, min_blocks_per_mp=1)


def fake_arguments():
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return make_fake_tensor(Float32, (1,), (1,), assumed_align=4), Int32(1), Float32(1.0), stream
"""

#: As ptxas says it, through the compiler's own formatting.
MESSAGES = """\x1b[96mremark[ptxas info]:\x1b[0m ptxas output: ptxas info    : (C7519) warpgroup.arrive is injected in \
around line 7 by compiler to allow use of registers in GMMA in function 'k_0'
ptxas info    : (C7519) warpgroup.arrive is injected in around line 9 by compiler
ptxas info    : 0 bytes gmem
ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers
ptxas info    : Compile time = 557.634 ms

  --> /some/where/k.py:467:0
> 467 | @cute.jit
"""

each_kernel = pytest.mark.parametrize("name", [plan.name for plan in plans()])


def trace_of(plan: ForwardPlan) -> Trace:
    """The trace of a kernel that is as abi.py says."""
    launch = abi.launch(plan)
    params = tuple(witness._expected(param) for param in abi.signature(plan).params)
    return Trace(f"{plan.name}_0", params, launch.threads, launch.smem_bytes)


def with_param(trace: Trace, name: str, **changes: Any) -> Trace:
    return replace(trace, params=tuple(replace(p, **changes) if p.name == name else p for p in trace.params))


def with_map(trace: Trace, name: str, **changes: Any) -> Trace:
    tensor_map = next(p.tensor_map for p in trace.params if p.name == name)
    assert tensor_map is not None
    return with_param(trace, name, tensor_map=replace(tensor_map, **changes))


@each_kernel
def test_a_shipped_kernel_is_as_its_plan_says(name: str) -> None:
    kernel = built()[name]
    plan = kernel.plan
    resources, problems = compiler.check(plan, kernel.cubin, kernel.remarks)
    assert problems == []
    assert resources.registers == 65536 // plan.threads // 8 * 8
    assert (resources.frame_bytes, resources.spill_bytes) == (0, 0)
    assert resources.smem_bytes == abi.launch(plan).smem_bytes
    assert resources.advisories == ()


@each_kernel
def test_the_machine_code_of_a_shipped_kernel(name: str) -> None:
    kernel = built()[name]
    plan = kernel.plan
    counts = sass.count(sass.disassemble(kernel.cubin))
    # QK walks head_dim and PV walks the keys of a block in steps of 16; both are there for the first or last block, for
    # masked blocks and for the others, for tiles that are done again, and for a last block with the next tile's first
    qk, pv = plan.variant.head_dim.qk // 16, plan.tile_n // 16
    expected = (3 + plan.optimistic + plan.overlap_tiles) * (qk + pv)
    if plan.narrow:  # a first block of 64 keys: its QK wherever a tile begins, and its PV with QK of the second block
        expected += (1 + plan.overlap_tiles) * qk + plan.overlap_tiles * pv + qk + 64 // 16
    assert counts.hgmma == expected
    assert counts.local == 0
    assert counts.setmaxreg == (plan.producer_regs, plan.consumer_regs)


@each_kernel
def test_nothing_built_names_this_machine(name: str) -> None:
    kernel = built()[name]
    places = (str(REPO), str(Path.home()), tempfile.gettempdir(), sys.prefix, "site-packages", ".py", "/generated/")
    for text in (kernel.cubin, kernel.ptx.encode(), "\n".join(kernel.remarks).encode()):
        assert [place for place in places if place.encode() in text] == []


def test_alternative_plans_compile(tmp_path: Path) -> None:
    """What templates offer and no shipped plan takes is right all the same."""
    alternatives = {}
    others = [resolve(plan_of().variant, changes) for changes in ALTERNATIVES.values()]
    others.append(resolve(parse_name("fwd_bf16_d128_causal_sm90a"), {"overlap_tiles": "true"}))  # narrow, and overlaps
    for number, plan in enumerate(others):
        path = tmp_path / f"alternative{number}.py"
        path.write_text(render(plan))
        alternatives[path.stem] = (plan, Job(path.stem, str(path), OPTIONS))
    for result in compiler.run([job for _, job in alternatives.values()], 2):
        assert isinstance(result, Compiled), result.message
        resources, problems = compiler.check_compiled(alternatives[result.name][0], result)
        assert problems == []
        assert resources.advisories == ()


def test_the_trace_of_a_right_kernel_agrees() -> None:
    for plan in plans():
        assert witness.differences(plan, trace_of(plan)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: replace(t, symbol="other_0"), "symbol: abi says fwd_bf16_d64_full_sm90a_0, the kernel has other_0"),
        (lambda t: replace(t, threads=256), "threads: abi says 512, the kernel has 256"),
        (lambda t: replace(t, smem_bytes=1), "shared memory: abi says .*, the kernel has 1"),
        (lambda t: replace(t, params=t.params[:-1]), "abi lists .*tile_counter; the kernel takes .*num_tiles$"),
        (
            lambda t: replace(t, params=(t.params[1], t.params[0], *t.params[2:])),
            "parameter 0: abi says tma_q .* tma_k",
        ),
        (lambda t: with_param(t, "seqlen_q", argument="seqlen_k"), "from seqlen_q, the kernel has .* from seqlen_k"),
        (lambda t: with_param(t, "m_tiles", kind=ParamKind.I64), r"m_tiles \(i32\) .* m_tiles \(i64\)"),
        (lambda t: with_map(t, "tma_k", box=(64, 64, 1, 1)), r"box \(64, 128, 1, 1\).* box \(64, 64, 1, 1\)"),
        (lambda t: with_map(t, "tma_v", axes=(3, 2, 1, 0)), r"axes \(3, 1, 2, 0\).* axes \(3, 2, 1, 0\)"),
        (lambda t: with_map(t, "tma_q", dtype="fp16"), "bf16, 128-byte swizzle, the kernel has .*fp16"),
        (lambda t: with_map(t, "tma_q", swizzle_bytes=64), "128-byte swizzle, .* 64-byte swizzle"),
    ],
)
def test_any_difference_from_abi_is_reported(change: Callable[[Trace], Trace], message: str) -> None:
    plan = plan_of()
    found = witness.differences(plan, change(trace_of(plan)))
    assert found
    assert re.search(message, "\n".join(found)), found


def test_a_cubin_with_other_parameters_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = built()[NAME]
    params = abi.signature(kernel.plan).params

    def changed(signature: abi.Signature) -> Callable[[ForwardPlan], abi.Signature]:
        return lambda _plan: signature

    signature = abi.signature(kernel.plan)
    wider = tuple(replace(p, kind=ParamKind.I64) if p.name == "seqlen_q" else p for p in params)
    monkeypatch.setattr(abi, "signature", changed(replace(signature, params=wider)))
    _, problems = compiler.check(kernel.plan, kernel.cubin, kernel.remarks)
    assert problems == ["parameter seqlen_q: abi says ordinal 10 of 8 bytes, the cubin has ordinal 10 of 4 bytes"]
    monkeypatch.setattr(abi, "signature", changed(replace(signature, params=params[:-1])))
    _, problems = compiler.check(kernel.plan, kernel.cubin, kernel.remarks)
    assert problems == [f"abi lists {len(params) - 1} parameters, the cubin has {len(params)}"]
    _, problems = compiler.check(plan_of("fwd_bf16_d128_full_sm90a"), kernel.cubin, kernel.remarks)
    assert "threads: abi says 384, the cubin has 512" in problems


def checked(kernel: Built, *remarks: str) -> list[str]:
    return compiler.check(kernel.plan, kernel.cubin, [*kernel.remarks, *remarks])[1]


def test_spills_and_serialised_wgmma_fail_a_kernel() -> None:
    kernel = built()[NAME]
    assert checked(kernel) == []
    (problem,) = checked(kernel, "ptxas . 0 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads")
    assert problem.startswith("28 bytes of spills")
    for code in ("C7508", "C7510", "C7511", "C7512", "C7514"):
        (problem,) = checked(kernel, f"ptxas info : ({code}) Potential Performance Loss")
        assert problem.startswith(code)
    for code in ("C7517", "C7519"):
        resources, problems = compiler.check(kernel.plan, kernel.cubin, [*kernel.remarks, f"({code})", f"({code})"])
        assert problems == []
        assert resources.advisories.count(code) == 2
    _, problems = compiler.check(kernel.plan, kernel.cubin, [])
    assert problems == ["ptxas did not say what the kernel takes"]


def test_remarks_are_those_of_ptxas_without_what_differs_from_run_to_run() -> None:
    remarks = worker._remarks(MESSAGES)
    assert len(remarks) == 5
    assert all(remark.startswith("ptxas ") for remark in remarks)
    assert not any("Compile time" in remark or "where" in remark or "\x1b" in remark for remark in remarks)
    kernel = built()[NAME]
    resources, problems = compiler.check(kernel.plan, kernel.cubin, remarks)
    assert resources.spill_bytes == 28
    assert resources.advisories == ("C7519", "C7519")
    assert len(problems) == 1


@pytest.fixture(scope="module")
def small_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compiled | Failed]:
    """Kernels that go wrong in one way each, compiled together; the worker is told where to find torch."""
    permuted = SMALL.replace("{n}", "n").replace("(out: cute.Pointer, n: Int32", "(n: Int32, out: cute.Pointer")
    permuted = permuted.replace("kernel(out.iterator, n,", "kernel(n, out.iterator,")
    sources = {
        "good": SMALL.replace("{n}", "n"),
        "computed": SMALL.replace("{n}", "n + 1"),
        "permuted": permuted,
        "wrong_syntax": "def launch(:\n",
        "wants_torch": f"import torch\n{SMALL.replace('{n}', 'n')}",
        "crash": "import os\nos._exit(3)\n",
    }
    folder = tmp_path_factory.mktemp("small")
    jobs = []
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
        jobs.append(Job(name, str(folder / f"{name}.py"), OPTIONS))
    return {result.name: result for result in compiler.run(jobs, 2)}


def failure(results: dict[str, Compiled | Failed], name: str) -> str:
    result = results[name]
    assert isinstance(result, Failed)
    assert not result.machine
    return result.message


def test_each_job_has_a_result_of_its_own(small_results: dict[str, Compiled | Failed]) -> None:
    assert sorted(small_results) == ["computed", "crash", "good", "permuted", "wants_torch", "wrong_syntax"]
    good = small_results["good"]
    assert isinstance(good, Compiled)
    assert good.cubin[:4] == b"\x7fELF"
    assert ".entry small_0" in good.ptx
    assert good.trace == Trace(
        "small_0",
        (
            TracedParam("out", "out", ParamKind.POINTER),
            TracedParam("n", "n", ParamKind.I32),
            TracedParam("scale", "scale", ParamKind.F32),
        ),
        128,
        0,
    )
    assert any("registers" in remark for remark in good.remarks)


def test_a_permuted_parameter_is_seen(small_results: dict[str, Compiled | Failed]) -> None:
    permuted = small_results["permuted"]
    assert isinstance(permuted, Compiled)
    assert [(p.name, p.argument) for p in permuted.trace.params[:2]] == [("n", "n"), ("out", "out")]


def test_launch_may_compute_nothing(small_results: dict[str, Compiled | Failed]) -> None:
    assert "parameter n is computed by arith.addi: `launch` must pass it" in failure(small_results, "computed")


def test_a_broken_source_is_shown(small_results: dict[str, Compiled | Failed]) -> None:
    message = failure(small_results, "wrong_syntax")
    assert message.startswith("SyntaxError: ")
    assert "wrong_syntax.py, line 1" in message


def test_workers_have_no_torch(small_results: dict[str, Compiled | Failed]) -> None:
    assert failure(small_results, "wants_torch").startswith("ModuleNotFoundError: import of torch halted")


def test_a_crash_takes_no_other_job_with_it(small_results: dict[str, Compiled | Failed]) -> None:
    assert failure(small_results, "crash") == "the compiler crashed"


def test_a_missing_compiler_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"no {name}")

    monkeypatch.setattr("importlib.import_module", missing)
    result = worker.compile_job(Job("k", "k.py", OPTIONS))
    assert result == Failed("k", "the kernel compiler cannot be loaded: no cutlass", machine=True)


def test_the_toolchain_is_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "installed", dict)
    with pytest.raises(MachineError, match=r"not installed\n  next: pip install 'nvidia-cutlass-dsl'"):
        toolchain.require("cu12")
    found = {"nvidia-cutlass-dsl": "4.8.1", "nvidia-cutlass-dsl-libs-cu12": "4.8.1"}
    monkeypatch.setattr(toolchain, "installed", lambda: found)
    assert toolchain.require("cu12") == found
    with pytest.raises(
        MachineError, match=r"has cu12 libraries\n  next: pip install 'nvidia-cutlass-dsl\[cu13\]==4.8.1'"
    ):
        toolchain.require("cu13")
    assert toolchain.check_loaded("cu12", "12.9") is None
    message = toolchain.check_loaded("cu12", "13.4")
    assert message is not None
    assert "loaded its cu13 libraries (CUDA 13.4); uninstall nvidia-cutlass-dsl-libs-cu13" in message
    assert toolchain.record("cu12", "12.9") == {"toolchain": "cu12", "cuda": "12.9", **found}


def test_a_digest_covers_no_bounds() -> None:
    """A change of `when` is one of the dispatch: what was compiled and verified stays so."""
    plan = resolve(plan_of().variant, {"tile_n": 64})

    def digest(plan: ForwardPlan) -> str:
        return sha256(canonical(compiler.digest_inputs(plan, render(plan), "cu12")).encode())

    bounded = replace(plan, when=Bounds.of({"max_seqlen_k": 2047}), priority=1)
    assert digest(bounded) == digest(plan)
    assert digest(replace(plan, suffix="")) != digest(plan)


def test_a_digest_covers_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()
    source = render(plan)

    def digest(plan: ForwardPlan = plan, source: str = source, chain: str = "cu12") -> str:
        return sha256(canonical(compiler.digest_inputs(plan, source, chain)).encode())

    found = [digest(), digest(source=source + "\n"), digest(chain="cu13")]
    assert digest() == found[0]
    for field in fields(abi.launch(plan)):
        value = getattr(abi.launch(plan), field.name)
        changed: Any = {field.name: "other" if isinstance(value, str) else value + 1}
        launch = replace(abi.launch(plan), **changed)
        with monkeypatch.context() as patch:
            patch.setattr(abi, "launch", lambda _plan, launch=launch: launch)
            found.append(digest())
    for signature in changed_signatures(plan):
        with monkeypatch.context() as patch:
            patch.setattr(abi, "signature", lambda _plan, signature=signature: signature)
            found.append(digest())
    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "installed", lambda: {"nvidia-cutlass-dsl": "4.8.2"})
        found.append(digest())
    with monkeypatch.context() as patch:
        patch.setitem(compiler.OPTIONS, Arch.SM90A, "--gpu-arch sm_90a")
        found.append(digest())
    for name in compiler.device_sources(source):
        with monkeypatch.context() as patch:
            patch.setattr(compiler, "_device_module", edited(name, compiler._device_module))
            found.append(digest())
    assert len(set(found)) == len(found) > 20


def edited(changed: str, read: Callable[[str], tuple[str, tuple[str, ...]]]) -> Callable[[str], Any]:
    """``_device_module`` after a comment was added to one module."""

    def read_edited(name: str) -> tuple[str, tuple[str, ...]]:
        text, imports = read(name)
        return text + "# changed\n" * (name == changed), imports

    return read_edited


def changed_signatures(plan: ForwardPlan) -> list[abi.Signature]:
    signature = abi.signature(plan)
    first = signature.params[0]
    assert first.tensor_map is not None
    tensor_map = first.tensor_map
    others: list[Param] = [
        replace(first, name="other"),
        replace(first, source="tensor:other"),
        replace(first, kind=ParamKind.POINTER),
        replace(first, tensor_map=None),
        *(replace(first, tensor_map=m) for m in changed_maps(tensor_map)),
    ]
    return [
        replace(signature, tensors=("q",)),
        replace(signature, optional=()),
        replace(signature, scalars=()),
        replace(signature, params=signature.params[::-1]),
        *(replace(signature, params=(other, *signature.params[1:])) for other in others),
    ]


def changed_maps(tensor_map: TensorMap) -> list[TensorMap]:
    return [
        replace(tensor_map, axes=tensor_map.axes[::-1]),
        replace(tensor_map, box=tensor_map.box[::-1]),
        replace(tensor_map, dtype="other"),
        replace(tensor_map, swizzle_bytes=32),
    ]


def test_device_sources_are_followed() -> None:
    found = compiler.device_sources(render(resolve(plan_of().variant, {"softmax": "exact"})))
    assert {"", "ring", "softmax", "tiles", "wgmma", "index", "mask", "messages", "scheduler_dynamic"} <= set(found)
    assert not {"again", "scheduler_static", "scheduler_persistent"} & set(found)
    assert found["ring"].startswith('"""')
    for change, module in (
        ({"scheduler": "static"}, "scheduler_static"),
        ({"scheduler": "persistent"}, "scheduler_persistent"),
        ({"softmax": "optimistic"}, "again"),
    ):
        assert module in compiler.device_sources(render(resolve(plan_of().variant, change)))
    assert set(compiler.device_sources("from fa3gen.device.ring import Ring\n")) >= {"ring"}
    assert set(compiler.device_sources("import fa3gen.device.mask as m\n")) >= {"mask"}
    assert compiler.device_sources("import cutlass\n") == {}


@pytest.mark.parametrize("source", ["import fa3gen.plan", "from fa3gen.model import DType", "from fa3gen import plan"])
def test_generated_kernels_import_the_device_library_only(source: str) -> None:
    with pytest.raises(Fa3genError, match=r"generated kernels may import fa3gen\.device and nothing else of fa3gen"):
        compiler.device_sources(source)


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", math.nan, math.inf, {"a": {3}}])
def test_what_has_no_canonical_json_raises(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical(value)


def test_canonical_json_does_not_depend_on_order() -> None:
    assert canonical({"b": 1, "a": (1, 2)}) == canonical({"a": [1, 2], "b": 1}) == '{"a":[1,2],"b":1}'
    assert json.loads(canonical({"é": 1})) == {"é": 1}
