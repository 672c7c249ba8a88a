# SPDX-License-Identifier: Apache-2.0
"""What deploy/check-gpu.sh says of machines with and without a GPU: nvidia-smi and libraries are scripts and files made here."""
import os
import stat
import subprocess

import pytest
from conftest import ROOT

SMI = """#!/bin/sh
case "$*" in
  "") echo "| NVIDIA-SMI 580.65   Driver Version: 580.65   CUDA Version: {cuda}  |" ;;
  *driver_version*) echo 580.65 ;;
  *index,name*) printf '%b' '{gpus}' ;;
  *index*) printf '%b' '{gpus}' | cut -d, -f1 ;;
  "topo -m") printf '\\tGPU0\\tGPU1\\nGPU0\\t X \\tNV18\\nGPU1\\tNV18\\t X \\n' ;;
  nvlink*) echo "GPU 0: Link 0: 26.562 GB/s" ;;
esac
"""
H100 = "{0}, NVIDIA H100, GPU-{0}abc, 9.0, 81559 MiB, Disabled\\n"


@pytest.fixture
def check(tmp_path):
    def run(cuda="13.0", gpus=H100.format(0), nccl="2.28.3", smi=True, nvcc="13.0", environment={}):
        tools, libraries = tmp_path / "tools", tmp_path / "libraries"
        tools.mkdir(exist_ok=True), libraries.mkdir()
        if smi:
            script = tools / "nvidia-smi"
            script.write_text(SMI.format(cuda=cuda, gpus=gpus))
            script.chmod(script.stat().st_mode | stat.S_IEXEC)
        compiler = tools / "nvcc"
        compiler.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {nvcc}, V{nvcc}.88'\n")
        compiler.chmod(compiler.stat().st_mode | stat.S_IEXEC)
        (libraries / "libcublasLt.so.13").write_text("")
        (libraries / f"libnccl.so.{nccl}").write_text(f"NCCL version {nccl}+cuda13.0\n")
        path = os.pathsep.join([str(tools), "/usr/bin", "/bin", "/usr/sbin", "/sbin"])
        done = subprocess.run([ROOT / "deploy/check-gpu.sh"], env={"PATH": path, "LD_LIBRARY_PATH": str(libraries), **environment},
                              capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return done.returncode, done.stdout

    return run


def no_linker_cache(tmp_path):
    """Else this machine's own libraries are found."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/ldconfig").write_text("#!/bin/sh\n")
    (tmp_path / "tools/ldconfig").chmod(0o755)


def line(said, what):
    found = [one for one in said.splitlines() if what in one]
    assert found, f"no line about {what}:\n{said}"
    return found[0]


def test_a_machine_without_a_gpu_is_told_what_is_missing(check):
    code, said = check(smi=False)
    assert code == 1
    assert line(said, "NVIDIA driver").startswith("missing") and "container toolkit" in said


def test_a_toolkit_that_the_linker_does_not_know_is_not_taken_for_one_that_an_engine_finds(check, tmp_path):
    (tmp_path / "cuda/lib64").mkdir(parents=True)
    (tmp_path / "cuda/lib64/libcublasLt.so.13").write_text("")
    no_linker_cache(tmp_path)
    code, said = check(environment={"CUDA_HOME": str(tmp_path / "cuda"), "LD_LIBRARY_PATH": ""})
    assert code == 1
    assert line(said, "cuBLASLt").startswith("missing") and str(tmp_path / "cuda/lib64") in line(said, "cuBLASLt")


def test_an_older_cublas_is_passed_over(check, tmp_path):
    (tmp_path / "older").mkdir()
    (tmp_path / "older/libcublasLt.so.11").write_text("")
    no_linker_cache(tmp_path)
    code, said = check(environment={"CUDA_HOME": str(tmp_path / "none"), "LD_LIBRARY_PATH": str(tmp_path / "older")})
    assert code == 1 and line(said, "cuBLASLt").startswith("missing")


def test_a_gpu_and_its_libraries_are_named(check):
    _, said = check(gpus=H100.format(0) + H100.format(1))
    assert line(said, "driver 580.65").startswith("ok")
    assert line(said, "GPU 1:").startswith("ok") and "compute capability 9.0" in said
    assert line(said, "cuBLASLt").startswith("ok")
    assert line(said, "NCCL 2.28.3").startswith("ok")
    assert "NV18" in said and line(said, "NVLink").startswith(("ok", "note"))


def test_a_driver_that_is_too_old_is_named(check):
    code, said = check(cuda="12.2")
    assert code == 1 and line(said, "driver for CUDA 12.4").startswith("missing") and "12.2" in said


def test_what_a_toolkit_builds_wants_a_driver_of_its_major_version(check):
    code, said = check(cuda="12.8", nvcc="13.0")
    assert line(said, "driver for CUDA 13.0").startswith("missing") and "12.8" in said
    assert line(said, "driver 580.65").startswith("ok")  # an engine that CUDA 12 built computes there


def test_an_old_driver_serves_what_an_old_toolkit_builds(check):
    assert "driver for CUDA 13.0" not in check(cuda="12.8", nvcc="12.4")[1]


def test_a_gpu_that_is_too_old_is_named(check):
    code, said = check(gpus="0, Tesla V100, GPU-0, 7.0, 16384 MiB, Disabled\\n")
    assert code == 1 and line(said, "compute capability 8.0").startswith("missing")


def test_an_old_nccl_costs_nccl_alone(check):
    _, said = check(nccl="2.16.5")
    assert line(said, "NCCL 2.18").startswith("missing") and "2.16.5" in said and "CUDA IPC alone" in said


def test_several_engines_on_one_gpu_want_a_later_nccl_and_mps(check):
    _, said = check(nccl="2.28.3")
    assert "on one GPU want NCCL 2.30, NCCL_MULTI_RANK_GPU_ENABLE=1 and MPS" in said
    assert line(said, "share a GPU want MPS").startswith("note")


def test_with_a_later_nccl_they_want_mps_alone(check):
    _, said = check(nccl="2.32.3")
    assert "on one GPU want NCCL_MULTI_RANK_GPU_ENABLE=1 and MPS" in said


def test_a_sliced_gpu_is_pointed_out(check):
    _, said = check(gpus="0, NVIDIA H100, GPU-0, 9.0, 81559 MiB, Enabled\\n")
    assert line(said, "MIG").startswith("note")


def test_limits_of_a_gpus_memory_are_named_where_they_are_set(check):
    _, said = check(environment={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10G", "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m"})
    assert line(said, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10G").startswith("note")
    assert line(said, "CUDA_DEVICE_MEMORY_LIMIT_0=3000m").startswith("note")
    assert "CUDA_DEVICE_MEMORY_LIMIT=" not in said


def test_without_limits_nothing_is_said_of_them(check):
    _, said = check()
    assert "MEM" not in said and "MEMORY_LIMIT" not in said
