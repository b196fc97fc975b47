"""Tests and fuzzing of convt's AArch64 build on an x86 computer: cross-compiled, and run by qemu.

    python tools/arm.py                                     # tests, at each instruction set
    python tools/arm.py tests/algorithms/test_direct.py -x             # arguments are pytest's
    python tools/arm.py fuzz --isa neon --seconds 60        # arguments are those of python -m tests.fuzz
    python tools/arm.py run -m convt                        # arguments are those of python
    python tools/arm.py --cycles                            # nothing runs: simulated cycles of the inner loops (mca.py)

It needs Debian with the packages gcc-aarch64-linux-gnu and qemu-user, the architecture arm64 in apt (`dpkg --add-architecture
arm64; apt-get update`), Debian's Python version for this program, and in this Python NumPy, Cython and setuptools. The build is
in build/arm: a copy of the files for a build and the tests, Debian's Python for arm64, and wheels for it. Kernels assert their
contract (CONVT_DEBUG_BUILD). Times have no meaning, because qemu translates instructions.
"""

import os
import shlex
import subprocess
import sys

import mca
from instrumented import copy, instruction_sets, test_files

ISAS = ["baseline", *instruction_sets("ARM_ISAS")]
PYTHON = "python{}.{}".format(*sys.version_info)
DEBIAN = [
    f"{PYTHON}-minimal", f"lib{PYTHON}-minimal", f"lib{PYTHON}-stdlib", f"lib{PYTHON}-dev", "libc6", "libgomp1", "libgcc-s1",
    "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libssl3", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1",
]  # fmt: skip
PACKAGES = ["numpy", "ml_dtypes", "pytest", "hypothesis", "onnx", "dask[array]"]
PLATFORMS = "manylinux2014_aarch64", "manylinux_2_27_aarch64", "manylinux_2_28_aarch64"
# Tests that compute and need no package besides PACKAGES.
TESTS = "api planes direct depthwise unpacked winograd scatter packing numerics memory onnx openvino properties threads"


def system(folder):
    """Return the folder of a Debian system for arm64 with Python and packages, which is made if it is not there."""
    root = folder / "system"
    if (root / "done").exists():
        return root
    packages = folder / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", "-q", *(f"{name}:arm64" for name in DEBIAN)], check=True, cwd=packages)
    for each in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", each, root], check=True)
    platforms = [word for each in PLATFORMS for word in ("--platform", each)]
    version = ["--python-version", "{}.{}".format(*sys.version_info), "--only-binary", ":all:"]
    target = root / "usr/local/lib" / PYTHON / "dist-packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", *platforms, *version, "--target", target]
    subprocess.run([*pip, *PACKAGES], check=True)
    # Programs that start sys.executable get this script.
    starter = root / "python"
    starter.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, emulated(root)))} "$@"\n')
    starter.chmod(0o755)
    (target / "starter.pth").write_text(f"import sys; sys.executable = {str(starter)!r}\n")
    (root / "done").touch()
    return root


def emulated(root):
    """Return the command that runs Python for arm64."""
    return ["qemu-aarch64", "-cpu", "max", "-L", root, root / "usr/bin" / PYTHON]


def build(folder, root):
    """Cross-compile the modules in place."""
    library = root / "usr/lib" / PYTHON
    (data,) = library.glob("_sysconfigdata__aarch64-linux-gnu.py")
    described = folder / "described"  # has only this module, because this Python must not import others of the system
    described.mkdir(exist_ok=True)
    (described / data.name).write_text(data.read_text())
    include = [f"-I{root}/usr/include/{PYTHON}", f"-I{root}/usr/include"]
    settings = {
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "_PYTHON_SYSCONFIGDATA_NAME": data.stem,
        "PYTHONPATH": str(described),
        "CC": " ".join(["aarch64-linux-gnu-gcc", *include]),
        "LDSHARED": "aarch64-linux-gnu-gcc -shared",
        "CONVT_DEBUG_BUILD": "1",
    }
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | settings)


def run(folder, root, arguments, **settings):
    """Run Python for arm64 with these arguments and return its exit status."""
    # Threads that spin while they wait would take the few cores from other processes.
    waiting = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
    settings = waiting | {"OPENBLAS_CORETYPE": "ARMV8", "PYTHONPATH": str(folder)} | settings
    return subprocess.run([*emulated(root), *arguments], cwd=folder, env=os.environ | settings).returncode


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--cycles"]:
        mca.main(every=arguments[1:] == ["--all"])
        return
    folder = copy("arm")
    root = system(folder)
    build(folder, root)
    if arguments[:1] == ["run"]:
        sys.exit(run(folder, root, arguments[1:]))
    if arguments[:1] == ["fuzz"]:
        sys.exit(run(folder, root, ["-m", "tests.fuzz", *arguments[1:]]))
    if not any(each.startswith("tests") for each in arguments):
        arguments = [*arguments, *test_files(TESTS)]
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    # Without CONVT_ISA, convt selects the last instruction set. Tests that select instruction sets themselves run only there.
    chosen = [{"CONVT_ISA": isa} for isa in ISAS[:-1]] + [{}]
    statuses = [run(folder, root, command, **isa) for isa in chosen]
    sys.exit(next((status for status in statuses if status), 0))


if __name__ == "__main__":
    main()
