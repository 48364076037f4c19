#!/usr/bin/env python3
"""Lets PyPI's CUDA build of torch load on a machine without a GPU and without NVIDIA's wheels (3 GB less).

    torch_cpu_stubs.py VENV        (needs gcc, nm and readelf)

For every NVIDIA library that torch's shared objects name and that is not there, it puts one into torch/lib that
defines the symbols they ask for, in the versions they ask for. Nothing of it is ever really called:
torch.cuda.is_available() asks the stub for devices, gets an error and is False.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

NVIDIA_LIBRARY = re.compile(r"NEEDED.*\[(lib(?:cu|nccl|nv)[^\]]*)\]")
NVIDIA_SYMBOL = re.compile(r"(cu|nccl|nv|__cuda|__nv)")
TEXT_OF_ERROR = re.compile(r"[eE]rror_?([sS]tring|[nN]ame)$")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def survey(objects):
    """Returns the undefined symbols (name or name@version), the defined ones, the NVIDIA libraries that are
    needed, and for each symbol version the library that has it."""
    undefined, defined, needed, owner = set(), set(), set(), {}
    for so in objects:
        for line in output("nm", "-D", so).splitlines():
            parts = line.split()
            if len(parts) == 2 and parts[0] in "Uw":
                undefined.add(parts[1])
            elif len(parts) == 3:
                defined.add(parts[2].split("@")[0])
        needed.update(NVIDIA_LIBRARY.findall(output("readelf", "-d", so)))
        library = None
        for line in output("readelf", "-V", "-W", so).splitlines():
            if m := re.search(r"File: (\S+)", line):
                library = m[1]
            if (m := re.search(r"Name: (\S+)", line)) and library:
                owner[m[1]] = library
    return undefined, defined, needed, owner


def definition(symbol):
    if symbol.startswith("__cuda"):  # called by constructors when a library loads: let them pass
        return f"void *{symbol}(void){{return 0;}}"
    if TEXT_OF_ERROR.search(symbol):
        return f'const char *{symbol}(void){{return "no device";}}'
    return f"long {symbol}(void){{return 100;}}"  # cudaErrorNoDevice


def build(target, symbols, versions, work):
    source, script = work / "stub.c", work / "stub.map"
    source.write_text("\n".join(definition(s) for s in symbols) + "\n")
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{target.name}", "-o", target, source]
    if versions:
        script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(names))}; }};\n" for v, names in versions.items()))
        command.append(f"-Wl,--version-script={script}")
    subprocess.run(command, check=True)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = list(pathlib.Path(sys.argv[1]).glob("lib/python3*/site-packages/torch"))
    if len(found) != 1:
        sys.exit(f"{sys.argv[1]}: want one torch in it, found {len(found)}")
    torch = found[0]
    undefined, defined, needed, owner = survey([*torch.glob("lib/*.so*"), *torch.glob("*.so")])
    missing = {n for n in needed if not (torch / "lib" / n).exists()}
    versioned, plain = defaultdict(lambda: defaultdict(set)), set()
    for symbol in undefined:
        name, _, version = symbol.partition("@")
        version = version.lstrip("@")
        if name in defined:
            continue
        if version and owner.get(version) in missing:
            versioned[owner[version]][version].add(name)
        elif not version and NVIDIA_SYMBOL.match(name):
            plain.add(name)
    with tempfile.TemporaryDirectory() as work:
        for library in sorted(missing):
            versions = versioned.get(library, {})
            # Which library has an unversioned symbol is recorded nowhere: each
            # one that has no versions gets them all.
            symbols = sorted(set().union(*versions.values())) if versions else sorted(plain)
            build(torch / "lib" / library, symbols, versions, pathlib.Path(work))
            print(f"{library}: {len(symbols)} symbols")


if __name__ == "__main__":
    main()
