#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whether this machine can run, and build, SwiftCache's GPU engine: a line for each thing that is wanted, and for each that
# is missing or too old the remedy. Needs nothing installed. Exit code: 0, an engine can compute on a GPU here; 1, not.
#   deploy/check-gpu.sh
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin  # ldconfig, which Debian gives root alone

DRIVER_CUDA=12.4 TOOLKIT_LOWEST=12.4 TOOLKIT_BEYOND=14.0 NCCL=2.18 NCCL_SHARED_GPU=2.30 COMPUTE=8.0
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
code=0
ok() { printf 'ok       %s\n' "$*"; }
note() { printf 'note     %s\n' "$*"; }
lacks() { printf 'missing  %s: %s\n' "$1" "$2"; [ "${3:-}" = optional ] || code=1; }  # lacks WHAT REMEDY [optional]
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }      # at_least FOUND WANTED
ask() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null; }

# --- driver and GPUs
if ! command -v nvidia-smi >/dev/null || ! smi=$(nvidia-smi 2>/dev/null); then
  lacks "NVIDIA driver" "install one for CUDA $DRIVER_CUDA or later; in a container, start it with the NVIDIA container toolkit (--gpus all)"
else
  cuda=$(grep -oE 'CUDA Version: [0-9.]+' <<<"$smi" | grep -oE '[0-9.]+$' || echo 0)
  if at_least "$cuda" $DRIVER_CUDA; then
    ok "driver $(ask driver_version | head -n 1), for CUDA $cuda"
  else
    lacks "driver for CUDA $DRIVER_CUDA (this one is for $cuda)" "install a later driver"
  fi
  while IFS=, read -r index name uuid compute memory mig; do
    what="GPU $index:$name,$uuid, compute capability$compute,$memory"
    if ! at_least "${compute// /}" $COMPUTE; then
      lacks "compute capability $COMPUTE ($what)" "use a later GPU, from the A100 on, or --backend=cpu"
    else
      ok "$what"
    fi
    [[ $mig == *Enabled* ]] && note "GPU $index is sliced (MIG): an engine takes one slice; name it in CUDA_VISIBLE_DEVICES"
  done < <(ask index,name,uuid,compute_cap,memory.total,mig.mode.current)
  if [ "$(ask index | wc -l)" -gt 1 ]; then
    note "how the GPUs reach each other (nvidia-smi topo -m; NV is NVLink, SYS crosses the processors):"
    nvidia-smi topo -m 2>/dev/null | grep -E '^(GPU|[[:space:]]+GPU)' | sed 's/^/           /'
    if nvidia-smi nvlink --status 2>/dev/null | grep -qE 'GB/s'; then
      ok NVLink
    else
      note "no NVLink: leases of other GPUs cross PCIe, where --stream=auto brings them into own memory layer by layer"
    fi
  fi
fi

# --- what is left of a GPU's memory for one process where somebody divides it
for limit in CUDA_MPS_PINNED_DEVICE_MEM_LIMIT CUDA_DEVICE_MEMORY_LIMIT ${!CUDA_DEVICE_MEMORY_LIMIT_@}; do
  [ -z "${!limit:-}" ] || note "$limit=${!limit}: an engine takes no more of the GPU's memory, and counts --gpu_memory_utilization from there"
done

# --- what an engine loads when it uses a GPU
newest() { find "$1" -maxdepth 1 -name "$2*" 2>/dev/null | sort -V | tail -n 1; }  # newest FOLDER NAME
toolkit=${CUDA_HOME:-/usr/local/cuda}
library() {  # library NAME: the file that the dynamic linker would take; NAME may have [..] in it
  local path='' folder
  for folder in ${LD_LIBRARY_PATH//:/ }; do
    [ -n "$path" ] || path=$(newest "$folder" "$1")
  done
  [ -n "$path" ] || path=$(ldconfig -p 2>/dev/null | awk -v name="^$1" '$1 ~ name {print $NF; exit}')
  [ -n "$path" ] && printf '%s' "$path"
}
cublas='libcublasLt.so.1[23]'
if path=$(library "$cublas"); then
  ok "cuBLASLt at $path"
elif path=$(newest "$toolkit/lib64" "$cublas") && [ -n "$path" ]; then
  lacks "cuBLASLt (an engine does not look in $toolkit/lib64, where it lies)" "put that folder into LD_LIBRARY_PATH, or into /etc/ld.so.conf.d and run ldconfig"
else
  lacks cuBLASLt "install CUDA's libraries $TOOLKIT_LOWEST or later, or put their folder into LD_LIBRARY_PATH"
fi
if path=$(library libnccl.so); then
  version=$(strings "$path" 2>/dev/null | grep -oE 'NCCL version [0-9]+\.[0-9]+\.[0-9]+' | grep -oE '[0-9.]+$' | head -n 1)
  [ -n "$version" ] || version=$(grep -oE '[0-9]+\.[0-9]+\.[0-9]+$' <<<"$(readlink -f "$path")" || echo 0)
  if ! at_least "$version" $NCCL; then
    lacks "NCCL $NCCL (found $version at $path)" "install a later one; without it engines share over CUDA IPC alone" optional
  else
    ok "NCCL $version at $path"
    wanted="NCCL_MULTI_RANK_GPU_ENABLE=1 and MPS, without which a token takes 50 to 200 ms"
    at_least "$version" $NCCL_SHARED_GPU || wanted="NCCL $NCCL_SHARED_GPU, $wanted"
    note "several NCCL engines on one GPU want $wanted"
  fi
else
  lacks NCCL "install libnccl2 $NCCL or later; without it engines share over CUDA IPC alone" optional
fi

# --- what two engines of one machine need to share memory
for device in /dev/nvidia0 /dev/nvidiactl /dev/nvidia-uvm; do
  if [ ! -e "$device" ]; then
    lacks "$device" "load the driver's modules (nvidia-modprobe -u), or pass the device to the container"
  elif [ ! -r "$device" ] || [ ! -w "$device" ]; then
    lacks "access to $device" "let this user read and write it"
  fi
done
note "engines that share a GPU want MPS (nvidia-cuda-mps-control -d): without it they take turns, and each waits for the turn of the other whose answer it wants"
note "engines that lend to each other, or share a GPU, run as one user and see one --shm_dir; in containers, mount it into all of them"

# --- what building wants
nvcc=$(command -v nvcc || find /usr/local/cuda/bin -name nvcc 2>/dev/null || true)
if [ -z "$nvcc" ]; then
  lacks "nvcc (only to build)" "install the CUDA Toolkit $TOOLKIT_LOWEST to 13.x" optional
else
  version=$("$nvcc" --version | grep -oE 'release [0-9.]+' | grep -oE '[0-9.]+')
  if at_least "$version" $TOOLKIT_LOWEST && ! at_least "$version" $TOOLKIT_BEYOND; then
    ok "nvcc $version (to build)"
    ! at_least "$version" 13.0 || [ -z "${cuda:-}" ] || at_least "$cuda" 13.0 ||
      lacks "driver for CUDA 13.0 (this one is for $cuda)" "what nvcc $version builds wants one: install a later driver, or build with CUDA 12" optional
  else
    lacks "nvcc $TOOLKIT_LOWEST to 13.x (found $version, only to build)" "install such a CUDA Toolkit" optional
  fi
fi
if [ $code -eq 0 ]; then
  echo "nothing is missing that an engine wants to compute on a GPU here; what is built with CUDA 13 wants a driver for CUDA 13"
else
  echo "no engine can compute on a GPU here: see what is missing above"
fi
exit $code
