#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a binary has kernels for the GPUs that it is to run on: tests/gpu/check_fatbin.py BINARY [sm_80 sm_89 sm_90]

Reads the headers of the section .nv_fatbin, since cuobjdump is not everywhere: each container begins with its magic, the
size of its header and that of its contents; each entry with its kind (1: PTX, 2: machine code), the size of its header,
that of its contents, and, 28 bytes in, the architecture."""
import struct
import subprocess
import sys
import tempfile

MAGIC = 0xBA55ED50


def entries(data):
    at = 0
    while (at := data.find(struct.pack("<I", MAGIC), at)) >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, at)
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, entry)
            yield {1: "ptx", 2: "elf"}.get(kind, f"kind {kind}"), struct.unpack_from("<I", data, entry + 28)[0]
            entry += entry_header + entry_size
        at = end


def main(binary, *wanted):
    wanted = wanted or ("sm_80", "sm_89", "sm_90")
    with tempfile.NamedTemporaryFile() as section:
        subprocess.run(["objcopy", "-O", "binary", "--only-section=.nv_fatbin", "--set-section-flags",
                        ".nv_fatbin=alloc", binary, section.name], check=True)
        found = sorted({(kind, arch) for kind, arch in entries(open(section.name, "rb").read())})
    print(f"{binary}: " + (", ".join(f"{kind} sm_{arch}" for kind, arch in found) or "no kernels"))
    missing = [arch for arch in wanted if ("elf", int(arch[3:])) not in found]
    if missing:
        print(f"no machine code for {', '.join(missing)}: CUDA_ARCHITECTURES of engine/backend/cuda/native names it")
    return 1 if missing else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
