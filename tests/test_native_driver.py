"""What the launcher asks of the driver: order, contexts, captures, tile counters, threads, forks and failures.

The driver is one without a GPU (tests/native/fake_cuda.c) that refuses what a real one would refuse.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fa3gen import abi
from tests.native import support
from tests.native.scenarios import CAPTURED, SCENARIOS
from tests.native.support import CAUSAL, FULL

HERE = Path(__file__).parent / "native"
CC = shutil.which("cc") or "gcc"
CXX = shutil.which("c++") or "g++"


class Line(NamedTuple):
    """A call that the driver saw."""

    thread: str
    name: str
    text: str

    def field(self, name: str) -> str:
        """The word behind ``name``."""
        found = re.search(rf"\b{name} (\S+)", self.text)
        assert found, (name, self.text)
        return found[1]

    @property
    def counter(self) -> str:
        """The last parameter of a launch."""
        return self.text.rsplit(" ", 1)[1]


class Outcome(NamedTuple):
    result: Any
    log: list[Line]

    def named(self, name: str) -> list[Line]:
        return [line for line in self.log if line.name == name]

    @property
    def names(self) -> list[str]:
        return [line.name for line in self.log]


Run = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    command = [CC, "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, str(HERE / "fake_cuda.c"), "-o", str(folder / "libcuda.so.1")], check=True)
    return folder


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> Run:
    """Runs a scenario; gives its result and the driver's log."""

    def run(name: str) -> Outcome:
        bundle, log = support.write_bundle(tmp_path / "bundle"), tmp_path / "log"
        environment = os.environ | {
            "FAKE_CUDA_LOG": str(log),
            "LD_LIBRARY_PATH": str(driver),
            "PYTHONPATH": os.pathsep.join((str(support.REPO), str(support.RUNTIME))),
        }
        command = [sys.executable, "-m", "tests.native.scenarios", name, str(bundle), str(support.libraries())]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = log.read_text().splitlines() if log.exists() else []
        seen = [Line(*[*line.split(" ", 2), ""][:3]) for line in lines]
        assert not [line for line in seen if line.name.startswith("illegal")]
        return Outcome(json.loads(done.stdout), seen)

    return run


LOADING = [
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuKernelSetAttribute",
    "cuKernelSetAttribute",
    "cuKernelGetFunction",
]
COUNTERS = ["cuStreamCreate", "cuMemAlloc", "cuMemsetD32Async", "cuStreamSynchronize"]
STARTING = ["cuInit", "cuDevicePrimaryCtxRetain", *LOADING, *COUNTERS]


def test_every_scenario_is_used() -> None:
    text = Path(__file__).read_text()
    assert [name for name in SCENARIOS if f'run("{name}")' not in text] == []


# ---- launches -------------------------------------------------------------------------------------------------------


def test_loading_a_bundle_touches_no_driver(run: Run) -> None:
    assert run("load_only") == (True, [])


def test_the_first_launch_loads_and_the_second_only_launches(run: Run) -> None:
    outcome = run("launch_twice")
    assert outcome.names == [*STARTING, "cuLaunchKernelEx", "cuLaunchKernelEx"]
    assert outcome.result == -1  # no context is left behind
    launch = abi.launch(CAUSAL)
    first, second = outcome.named("cuLaunchKernelEx")
    for line, grid in ((first, 48), (second, 132 - 100)):
        found = [line.field(name) for name in ("device", "stream", "grid", "block", "smem")]
        assert found == ["0", "0x10", str(grid), str(launch.threads), str(launch.smem_bytes)]
    attributes = [line.text for line in outcome.named("cuKernelSetAttribute")]
    assert attributes == [f"device 0 attribute 8 value {launch.smem_bytes}", "device 0 attribute 9 value 100"]
    assert outcome.named("cuLibraryGetKernel")[0].text == f"{CAUSAL.name}_0"


def test_parameters_arrive_in_the_signatures_order(run: Run) -> None:
    first = run("launch_twice").named("cuLaunchKernelEx")[0]
    values = first.text.split("params ")[1].split(" ")
    names = [param.name for param in abi.signature(CAUSAL).params]
    assert dict(zip(names, values, strict=True)) == {
        "tma_q": "9@0x1000000000:128,300",
        "tma_k": "9@0x1100000000:128,200",
        "tma_v": "9@0x1200000000:128,200",
        "out": "0x1300000000",
        "out_stride_batch": "307200",
        "out_stride_seqlen": "1024",
        "out_stride_head": "128",
        "lse": "0x1400000000",
        "lse_stride_batch": "2400",
        "lse_stride_head": "300",
        "seqlen_q": "300",
        "seqlen_k": "200",
        "heads_q": "8",
        "heads_per_kv": "4",
        "softmax_scale_log2": "0.180336878",
        "m_tiles": "3",
        "num_tiles": "48",
        "head_section": "16",
        "tile_counter": first.counter,
    }


def test_a_kernel_without_a_counter_asks_for_none(run: Run) -> None:
    outcome = run("static_kernel")
    assert outcome.names == ["cuInit", "cuDevicePrimaryCtxRetain", *LOADING, "cuLaunchKernelEx"]
    line = outcome.named("cuLaunchKernelEx")[0]
    tiles = 2 * 8 * -(-300 // FULL.tile_m)
    assert line.field("grid") == str(tiles)
    assert line.field("params") == "6@0x1000000000:64,300"  # fp16


def test_nothing_to_read_and_no_lse(run: Run) -> None:
    line = run("no_lse_no_keys").named("cuLaunchKernelEx")[0]
    values = line.text.split("params ")[1].split(" ")
    assert values[1:3] == ["9@0x1000000000:1,1"] * 2  # q's memory, which exists
    assert values[7:12] == ["(nil)", "0", "0", "300", "0"]


def test_warm_loads_everything_a_launch_needs(run: Run) -> None:
    assert run("warm").names == [*STARTING, "cuLaunchKernelEx"]


def test_closing_unloads(run: Run) -> None:
    outcome = run("close")
    assert outcome.names[-2:] == ["cuLaunchKernelEx", "cuLibraryUnload"]
    assert outcome.names.count("cuLibraryUnload") == 1  # the kernels that were never used have nothing to unload


def test_through_tvm_ffi(run: Run) -> None:
    """The stream is TVM-FFI's current one of the tensors' device, the address includes the byte offset."""
    outcome = run("binding")
    assert outcome.result == [132, 16]
    lines = outcome.named("cuLaunchKernelEx")
    assert [(line.field("stream"), line.field("grid")) for line in lines] == [
        ("0x77", "32"),
        ("0x77", "48"),
        ("(nil)", "48"),
    ]
    assert lines[0].field("params") == "9@0x1000000000:128,300"
    assert " (nil) 0 0 300 200 " in lines[1].text  # no lse
    assert " 1.44269502 " in lines[1].text  # an int is a scale too


# ---- contexts and devices -------------------------------------------------------------------------------------------


def test_the_threads_context_is_restored(run: Run) -> None:
    outcome = run("context_is_restored")
    after_launch, error, after_failure, in_bare_thread = outcome.result
    assert (after_launch, after_failure, in_bare_thread) == (1, 1, -1)
    assert error[0] == "DRIVER_ERROR"
    assert {line.field("device") for line in outcome.named("cuLaunchKernelEx")} == {"0"}


def test_each_device_is_prepared_once_and_the_cubin_loaded_once(run: Run) -> None:
    outcome = run("two_devices")
    assert outcome.result == [132, 16]
    assert [line.field("device") for line in outcome.named("cuDevicePrimaryCtxRetain")] == ["1", "0"]
    assert [line.field("device") for line in outcome.named("cuKernelGetFunction")] == ["1", "0"]
    assert len(outcome.named("cuLibraryLoadData")) == 1
    launches = outcome.named("cuLaunchKernelEx")
    assert [(line.field("device"), line.field("grid")) for line in launches] == [("1", "16"), ("0", "48"), ("1", "16")]
    assert [line.field("device") for line in outcome.named("cuMemAlloc")] == ["1", "0"]
    assert launches[0].counter == launches[2].counter != launches[1].counter


# ---- tile counters and captures -------------------------------------------------------------------------------------


def _counters(outcome: Outcome) -> list[str]:
    return [line.counter for line in outcome.named("cuLaunchKernelEx")]


def test_each_stream_has_a_counter(run: Run) -> None:
    *shared, own = _counters(run("counter_of_each_stream"))
    assert shared[:3] == shared[3:]
    assert len(set(shared)) == 3
    assert own == "0x1230"


def test_each_captured_launch_has_a_counter(run: Run) -> None:
    eager, first, second, again, other = _counters(run("capture_takes_fresh_counters"))
    assert eager == again
    assert len({eager, first, second, other}) == 4


def test_a_cold_kernel_is_loaded_outside_the_capture(run: Run) -> None:
    outcome = run("capture_of_a_cold_kernel")  # the fake driver refuses what a capture forbids
    assert outcome.names == [*STARTING, "cuLaunchKernelEx"]
    assert outcome.named("cuLaunchKernelEx")[0].field("stream") == hex(CAPTURED)
    assert outcome.result == 0  # the thread's capture mode is restored


def test_counters_never_come_again(run: Run) -> None:
    outcome = run("counters_beyond_a_slab")
    counters = [int(text, 16) for text in _counters(outcome)]
    assert len(set(counters)) == len(counters) == 5001
    assert min(b - a for a, b in pairwise(sorted(counters))) >= 32
    slabs = [(int(line.field("address"), 16), int(line.field("bytes"))) for line in outcome.named("cuMemAlloc")]
    assert len(slabs) == 2
    assert all(any(start <= counter <= start + size - 4 for start, size in slabs) for counter in counters)
    zeroed = [
        (int(line.field("address"), 16), 4 * int(line.field("count"))) for line in outcome.named("cuMemsetD32Async")
    ]
    assert zeroed == slabs
    assert len(outcome.named("cuStreamCreate")) == 1
    assert outcome.result == 0


def test_the_default_stream_during_a_capture_is_the_drivers_error(run: Run) -> None:
    status, text = run("default_stream_during_capture").result
    assert status == "DRIVER_ERROR"
    assert text == "cuStreamIsCapturing failed: CUDA_ERROR_FAKE (906), a made-up error"


# ---- threads and forks ----------------------------------------------------------------------------------------------


def test_threads_share_one_load(run: Run) -> None:
    outcome = run("threads")
    assert outcome.result == [["OK", ""]] * 16
    for name, count in (
        ("cuInit", 1),
        ("cuDevicePrimaryCtxRetain", 1),
        ("cuLibraryLoadData", 2),
        ("cuKernelGetFunction", 2),
        ("cuMemAlloc", 1),
    ):
        assert len(outcome.named(name)) == count, name
    launches = outcome.named("cuLaunchKernelEx")
    assert len(launches) == 8 * 2 * 50
    by_stream: dict[str, set[str]] = {}
    for line in launches:
        if line.field("block") == str(abi.launch(CAUSAL).threads):
            by_stream.setdefault(line.field("stream"), set()).add(line.counter)
    assert [len(counters) for counters in by_stream.values()] == [1] * 8
    assert len(set.union(*by_stream.values())) == 8


def test_a_bundle_loaded_before_a_fork_works_on_both_sides(run: Run) -> None:
    outcome = run("fork_before_use")
    assert outcome.result == [["OK", ""], ["OK", ""]]
    assert len({line.thread for line in outcome.named("cuLaunchKernelEx")}) == 2


def test_a_child_of_a_process_that_used_the_driver_is_told(run: Run) -> None:
    outcome = run("fork_after_use")
    for status, text in outcome.result:
        assert status == "FORKED"
        assert text.startswith("CUDA was initialised before this process was forked, and a forked child cannot use it")
    assert len({line.thread for line in outcome.log}) == 1  # the child asked the driver nothing


def test_a_child_of_a_process_whose_framework_used_the_driver_is_told(run: Run) -> None:
    status, text = run("fork_after_others_use").result
    assert status == "FORKED"
    assert "most likely CUDA was initialised before this process was forked" in text


def test_a_fork_waits_until_the_driver_is_opened(run: Run) -> None:
    """Half a driver would be of no use to the child, which could not know."""
    outcome = run("fork_while_the_driver_starts")
    assert outcome.result[0] == "FORKED"
    assert outcome.names.count("cuInit") == 1


# ---- failures -------------------------------------------------------------------------------------------------------


def test_no_gpu_is_said_and_asked_again(run: Run) -> None:
    first, second = run("no_gpu").result
    assert first == ["NO_DRIVER", "the NVIDIA driver finds no GPU (is CUDA_VISIBLE_DEVICES empty?)"]
    assert second == ["OK", ""]


def test_a_driver_that_does_not_start(run: Run) -> None:
    assert run("broken_init").result == ["DRIVER_ERROR", "cuInit failed: CUDA_ERROR_FAKE (804), a made-up error"]


def test_a_device_that_is_not_there(run: Run) -> None:
    shown = [f"device {device} does not exist; this machine has 2" for device in (2, -1, 1000, 5)]
    assert run("device_that_is_not_there").result == [["BAD_DEVICE", text] for text in shown]


def test_a_device_of_another_capability(run: Run) -> None:
    outcome = run("wrong_capability")
    text = f"device 0 has compute capability 10.0; {CAUSAL.name} (sm90a) needs 9.0"
    assert outcome.result == ["BAD_DEVICE", text]
    assert "cuLibraryLoadData" not in outcome.names


def test_a_device_with_too_little_shared_memory(run: Run) -> None:
    status, text = run("too_little_shared_memory").result
    assert status == "DRIVER_ERROR"
    assert text.startswith("cuKernelSetAttribute failed: ")


def test_a_failed_launch_leaves_the_launcher_usable(run: Run) -> None:
    failed, next_one = run("launch_fails").result
    assert failed == [
        "DRIVER_ERROR",
        "cuLaunchKernelEx failed: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701), too many resources requested for launch",
    ]
    assert next_one == ["OK", ""]


# ---- the driver's interface -----------------------------------------------------------------------------------------


def _cuda_header() -> Path | None:
    """The folder of cuda.h in an installed package of NVIDIA's."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "cuda.h":
                return Path(str(file.locate())).parent
    return None


def test_declarations_are_those_of_nvidias_header() -> None:
    include = _cuda_header()
    if include is None:
        pytest.skip("no cuda.h: pip install nvidia-cuda-runtime")
    command = [CXX, "-std=c++17", "-fsyntax-only", f"-I{include}", f"-I{support.RUNTIME / 'native'}"]
    result = subprocess.run([*command, str(HERE / "driver_header.cpp")], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
