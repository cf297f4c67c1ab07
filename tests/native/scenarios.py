"""One scenario of the launcher against the fake driver: ``python -m tests.native.scenarios NAME BUNDLE LIBRARIES``.

A process of its own each time: the driver is found by the loader's path, and its state lasts as long as the process.
A scenario prints one JSON document; what the driver saw is in its log.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fa3gen import abi
from fa3gen.model import ForwardPlan
from tests.native.support import (
    CAUSAL,
    FULL,
    LARGE,
    LaunchError,
    Library,
    call,
    dense,
    param_letters,
)

CAPTURED = 0x1000  # in a stream's value: the fake driver takes the stream for a capturing one


class Session:
    """The launcher, a bundle, and the fake driver behind it."""

    def __init__(self, bundle: str, libraries: str) -> None:
        self.libraries = Path(libraries)
        self.path = bundle
        self.library = Library(self.libraries / "libfa3.so")
        self.bundle = self.library.open(bundle)
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.set(param_kinds=param_letters(abi.signature(CAUSAL).params))

    def set(self, **settings: object) -> None:
        for name, value in settings.items():
            self.driver.fake_set(name.encode(), str(value).encode())

    def kernel(self, plan: ForwardPlan = CAUSAL) -> ctypes.c_void_p:
        return self.library.find(self.bundle, plan.name)

    def launch(
        self, plan: ForwardPlan = CAUSAL, stream: int = 0, device: int = 0, times: int = 1, **options: Any
    ) -> None:
        for _ in range(times):
            self.library.launch(self.kernel(plan), call(dense(plan, device=device), stream=stream, **options))

    def error(self, function: Callable[[], object]) -> list[object]:
        """The status and text of the error that ``function`` ends in."""
        try:
            function()
        except LaunchError as error:
            return [error.status.name, str(error)]
        return ["OK", ""]


def launch_twice(s: Session) -> object:
    s.launch(stream=0x10)
    s.launch(stream=0x10, sm_margin=100)
    return s.driver.fake_current_device()


def load_only(s: Session) -> object:
    return s.kernel().value is not None


def static_kernel(s: Session) -> object:
    s.set(param_kinds=param_letters(abi.signature(FULL).params))
    s.launch(FULL, stream=0x10)
    return None


def context_is_restored(s: Session) -> object:
    """A thread that works on device 1 launches on device 0; then one without any context does."""
    s.driver.fake_push(1)
    s.launch()
    found = [s.driver.fake_current_device()]
    s.set(launch_result=701)
    found.append(s.error(s.launch))
    found.append(s.driver.fake_current_device())
    s.set(launch_result=0)

    def in_bare_thread() -> None:
        s.launch()
        found.append(s.driver.fake_current_device())

    thread = threading.Thread(target=in_bare_thread)
    thread.start()
    thread.join()
    return found


def two_devices(s: Session) -> object:
    s.launch(device=1, stream=0x10)
    s.launch(device=0, stream=0x20)
    s.launch(device=1, stream=0x10)
    return [s.library.num_sms(0), s.library.num_sms(1)]


def warm(s: Session) -> object:
    s.library.warm(s.kernel())
    s.library.warm(s.kernel())
    s.launch(stream=0x10)
    return None


def capture_of_a_cold_kernel(s: Session) -> object:
    """The first use of the driver at all, while some thread captures in global mode."""
    s.set(capturing=1)
    s.launch(stream=CAPTURED)
    return s.driver.fake_capture_mode()


def capture_takes_fresh_counters(s: Session) -> object:
    for stream in (0x10, CAPTURED, CAPTURED, 0x10, CAPTURED | 1):
        s.launch(stream=stream)
    return None


def counter_of_each_stream(s: Session) -> object:
    for stream in (0, 0x10, 0x20, 0, 0x10, 0x20):
        s.launch(stream=stream)
    s.launch(stream=0x10, tile_counter=0x1230)
    return None


def counters_beyond_a_slab(s: Session) -> object:
    s.launch(stream=0x10)
    s.set(capturing=1)
    for _ in range(5000):
        s.launch(stream=CAPTURED)
    return s.driver.fake_capture_mode()


def default_stream_during_capture(s: Session) -> object:
    s.library.warm(s.kernel())
    s.set(capturing=1)
    return s.error(lambda: s.launch(stream=0))


def threads(s: Session) -> object:
    """Eight threads meet at the first launch, each with a stream of its own."""
    s.set(slowness=100)
    barrier = threading.Barrier(8)
    errors: list[object] = []

    def work(number: int) -> None:
        barrier.wait()
        for plan in (CAUSAL, LARGE):
            errors.append(s.error(partial(s.launch, plan, stream=0x100 + number, times=50)))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return errors


def _in_child(function: Callable[[], object]) -> object:
    """What ``function`` gives in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(function()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


def fork_before_use(s: Session) -> object:
    """The child uses the driver; so does the parent afterwards."""
    return [_in_child(lambda: s.error(s.launch)), s.error(s.launch)]


def fork_after_use(s: Session) -> object:
    s.launch()
    kernel = s.kernel()
    in_child = _in_child(lambda: [s.error(s.launch), s.error(lambda: s.library.warm(kernel))])
    s.launch()
    return in_child


def fork_after_others_use(s: Session) -> object:
    """Not the launcher but, say, torch has initialised CUDA in the parent."""
    s.driver.cuInit(0)
    return _in_child(lambda: s.error(s.launch))


def fork_while_the_driver_starts(s: Session) -> object:
    """A fork while another thread is inside cuInit."""
    s.set(slowness=500)
    worker = threading.Thread(target=s.launch)
    worker.start()
    log = Path(os.environ["FAKE_CUDA_LOG"])
    while not log.exists() or "cuInit" not in log.read_text():
        time.sleep(0.01)
    outcome = _in_child(lambda: s.error(s.launch))
    worker.join()
    return outcome


def no_gpu(s: Session) -> object:
    s.set(devices=0)
    first = s.error(s.launch)
    s.set(devices=1)  # the next call asks again
    return [first, s.error(s.launch)]


def broken_init(s: Session) -> object:
    s.set(init_result=804)
    return s.error(s.launch)


def device_that_is_not_there(s: Session) -> object:
    kernel = s.kernel()
    launches = [s.error(partial(s.launch, device=device)) for device in (2, -1, 1000)]
    return [*launches, s.error(lambda: s.library.warm(kernel, 5))]


def wrong_capability(s: Session) -> object:
    s.set(capability=100)
    return s.error(s.launch)


def too_little_shared_memory(s: Session) -> object:
    s.set(max_smem=1024)
    return s.error(s.launch)


def launch_fails(s: Session) -> object:
    s.set(launch_result=701)
    first = s.error(s.launch)
    s.set(launch_result=0)
    return [first, s.error(s.launch)]


def no_lse_no_keys(s: Session) -> object:
    tensors = dense(CAUSAL, seqlen_k=0) | {"lse": None}
    s.library.launch(s.kernel(), call(tensors))
    return None


def close(s: Session) -> object:
    s.launch()
    s.library.c.fa3_bundle_close(s.bundle)
    return None


def binding(s: Session) -> object:
    """The TVM-FFI functions on tensors that claim to be on a CUDA device."""
    from tvm_ffi import device, load_module, use_raw_stream

    from tests.native.dlpack import cuda_tensor

    module = load_module(str(s.libraries / "libfa3_tvm_ffi.so"))
    kernel = module.kernel(module.load_bundle(s.path), CAUSAL.name)
    tensors = [cuda_tensor(tensor) for tensor in dense().values()]
    module.warm(kernel, 0)
    with use_raw_stream(device("cuda", 0), 0x77):
        module.launch(kernel, 100, 0.125, *tensors)
        module.launch(kernel, 0, 1, *tensors[:4], None)
    module.launch(kernel, 0, 0.125, *tensors)
    return [module.num_sms(0), module.num_sms(1)]


SCENARIOS: dict[str, Callable[[Session], object]] = {
    function.__name__: function
    for function in (
        launch_twice,
        load_only,
        static_kernel,
        context_is_restored,
        two_devices,
        warm,
        capture_of_a_cold_kernel,
        capture_takes_fresh_counters,
        counter_of_each_stream,
        counters_beyond_a_slab,
        default_stream_during_capture,
        threads,
        fork_before_use,
        fork_after_use,
        fork_after_others_use,
        fork_while_the_driver_starts,
        no_gpu,
        broken_init,
        device_that_is_not_there,
        wrong_capability,
        too_little_shared_memory,
        launch_fails,
        no_lse_no_keys,
        close,
        binding,
    )
}

if __name__ == "__main__":
    print(json.dumps(SCENARIOS[sys.argv[1]](Session(*sys.argv[2:]))))
