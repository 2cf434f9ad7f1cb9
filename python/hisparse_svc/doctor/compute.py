"""GPU, torch and kernels. Planning and serving need none of them; the data plane does."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from hisparse_svc.doctor.check import Check

__all__ = ["compute_checks"]

QUERY = ["--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader"]
TIMEOUT_S = 10


def compute_checks() -> list[Check]:
    """Look at what could run the data plane."""
    return [gpu(), registration(), torch(), kernels()]


def gpu() -> Check:
    """Ask the driver's own tools, which exist without torch."""
    without = "planning and serving work without one; decode kernels do not run here"
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        try:
            told = subprocess.run([tool, *QUERY], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603 - a fixed command found on PATH
        except (OSError, subprocess.TimeoutExpired) as failure:
            return Check("GPU", "unknown", f"nvidia-smi does not answer ({failure})", without, "check the driver")
        if told.returncode != 0:
            reason = (told.stderr or told.stdout).strip().splitlines()
            return Check("GPU", "unknown", reason[0] if reason else "nvidia-smi failed", without, "check the driver")
        cards = [line.strip() for line in told.stdout.splitlines() if line.strip()]
        return Check("GPU", "ok", "; ".join(cards), "name, memory, compute capability, driver")
    if Path("/dev/kfd").exists():
        return Check("GPU", "ok", "an AMD GPU (/dev/kfd)", "`rocm-smi` tells more")
    if Path("/dev/nvidiactl").exists():
        remedy = "add the `utility` driver capability to the container"
        return Check("GPU", "unknown", "an NVIDIA device without nvidia-smi", without, remedy)
    return Check("GPU", "note", "none found", without, "give the container a GPU, or plan with --gpu NAME")


READ_ONLY_HOST_REGISTER_SUPPORTED = 113
"""The driver's number for the attribute."""


def registration() -> Check:
    """Ask the driver whether reader ranks can keep their mappings read-only."""
    name = "read-only pages"
    without = "matters to engines with several ranks on a GPU"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
            return Check(name, "unknown", "the driver shows no device", without)
        takes = []
        for device in range(count.value):
            value = ctypes.c_int()
            asked = driver.cuDeviceGetAttribute(ctypes.byref(value), READ_ONLY_HOST_REGISTER_SUPPORTED, device)
            takes.append(asked == 0 and value.value == 1)
    except (OSError, AttributeError):
        return Check(name, "unknown", "no CUDA driver here", without)
    if all(takes):
        return Check(name, "ok", "can be registered with CUDA", "reader ranks map the pool read-only, by the kernel")
    found = f"cannot be registered with GPU {', '.join(str(place) for place, can in enumerate(takes) if not can)}"
    meaning = "reader ranks there must map the pool read-write, and only this library keeps them from writing"
    return Check(name, "note", found, meaning, 'HostPool.attach(role="writable_reader")')


def torch() -> Check:
    """Say which torch is installed, without importing it: that takes seconds and starts a driver."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        meaning = "planning and serving do not use it; the data plane and integrations do"
        return Check("torch", "note", "not installed", meaning, "install the torch build for your driver")
    return Check("torch", "ok", version, "the data plane can be imported")


def kernels() -> Check:
    """Say which ways of running a kernel are at hand."""
    have_torch = importlib.util.find_spec("torch") is not None
    cuda_home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    ways = {
        "reference": have_torch,
        "triton": have_torch and importlib.util.find_spec("triton") is not None,
        "nvcc": (shutil.which("nvcc") or shutil.which("nvcc", path=str(Path(cuda_home) / "bin"))) is not None,
    }
    found = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in ways.items())
    if not have_torch:
        return Check("kernels", "note", found, "none can run without torch", "install torch first")
    if not ways["triton"] and not ways["nvcc"]:
        return Check("kernels", "note", found, "only the slow reference can run", "install triton or the CUDA toolkit")
    return Check("kernels", "ok", found, "what compiles or interprets kernels here")
