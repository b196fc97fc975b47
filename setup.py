"""Builds convt: the Cython modules, and the micro-kernels of each instruction set.

ISAS is the one table of instruction sets. A row names the row it builds on, whose kernels it has where it brings none of its
own, and adds the compiler flags of ``convt/kernels/isa_<name>.c`` and the CPU features that must be present before its kernels
are called; names, bases and features go into a generated header that the dispatcher (convt/kernels/dispatch.c) and
``convt.show_config()`` read. Rows go from least to most.
"""

import hashlib
import os
import re
import shutil
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from Cython import __version__ as cython_version
from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ISAS = [
    # name, base, flags and CPU features (names of kernels/cpu_features.h) beyond those of the base
    ("baseline", None, [], []),
    ("avx2", "baseline", ["-mavx2", "-mfma", "-mf16c"], ["AVX2", "FMA", "F16C"]),
    ("avx512", "avx2", ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
     ["AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"]),
    ("avx512_bf16", "avx512", ["-mavx512bf16"], ["AVX512_BF16"]),
    # (-O2 makes its Winograd and its loops over tiles 2 to 3% slower.)
    ("avx512_amx", "avx512", ["-mamx-tile", "-mamx-bf16", "-O3"], ["AMX_BF16"]),
]  # fmt: skip

# For tools/emulate.py: what AVX2 lacks is compiled for AVX2, with functions in place of instructions.
EMULATED = Path("tools/emulated.h")
if os.environ.get("CONVT_EMULATED_BUILD"):
    ISAS[2:] = [(name, base, ["-include", str(EMULATED), "-Wno-psabi"], []) for name, base, *_ in ISAS[2:]]

# Fewer of them are built sooner, for tools/sanitize.py: CONVT_BUILD_ISAS=baseline,avx2
WANTED = os.environ["CONVT_BUILD_ISAS"].split(",") if "CONVT_BUILD_ISAS" in os.environ else None

CORE = "convt._core"  # the module that links the kernels; all others reach them through it
KERNELS = Path("convt/kernels")
# The Cython files that run the kernels.
LOOPS = sorted([Path("convt/_core.pyx"), *Path("convt/algorithms").rglob("*.pyx"), *Path("convt/algorithms").rglob("*.pxd")])
FOREIGN = Path("third_party/onednn"), Path("third_party/onnxruntime")  # declarations of libraries opened at run time
OBJECTS = Path("build/kernels")
# Results must not depend on the compiler's mood: no contraction behind our back, and nothing of the -ffast-math family,
# which would also switch the whole process of the user to flush-to-zero.
# Without the debug information that most Pythons ask for: it is nine tenths of the library.
# C throws nothing: tables to unwind its frames are for debuggers alone.
CFLAGS = ["-std=gnu11", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden",
          "-fno-asynchronous-unwind-tables"]  # fmt: skip
# Plain loops are vectorized as by -O3; what else -O3 does to micro-kernels makes them a tenth larger, and those of depthwise
# slower. (GCC does not see that the first turn of a loop sets what the next ones read, and says so at length.)
KERNEL_CFLAGS = [*CFLAGS, "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-Wno-maybe-uninitialized"]
# Modules decide what to compute, and what takes time are kernels. These do so once for an operator, or call another library.
MODULE_CFLAGS = [*CFLAGS, "-O2"]
BRIEF = re.compile(r"convt\.(_dlpack|_memory|onnxruntime\.library|algorithms\.(packing|onednn\..*|.*weights))")
DEBUG = ["-O1", "-g"]
KERNEL_DEBUG = [*DEBUG, "-UNDEBUG", "-DCONVT_DEBUG"]
# For tools/coverage.py, which adds the flags that count: nothing is optimised away, each function is by itself.
COVERAGE = ["-O0", "-Dalways_inline="] if os.environ.get("CONVT_COVERAGE_BUILD") else []
# Where the linker knows it: segments of a module that are pages apart take ten kilobytes each time.
COMPACT = "-Wl,-z,noseparate-code"
# Names of functions are for debuggers and profilers: in a checkout kernels keep theirs, at which our tests look, too.
STRIP = "-Wl,-s"

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
X86 = sysconfig.get_platform().endswith(("x86_64", "amd64"))  # of the target, when it is another machine's


def isa_rows(known, wanted=None):
    """The rows of ISAS, or of those wanted, whose flags the compiler knows: (name, base, flags, features), all of these."""
    rows = {None: (None, None, [], [])}
    for name, base, flags, features in ISAS if X86 else ISAS[:1]:
        if (wanted is None or name in wanted) and base in rows and known(rows[base][2] + flags):
            rows[name] = name, base, rows[base][2] + flags, rows[base][3] + features
    return list(rows.values())[1:]


def isa_header(rows):
    """The table as C: one ISA(name, base, features) line per row."""
    bits = lambda features: " | ".join("CPU_" + feature for feature in features) or "0"  # noqa: E731
    lines = [f"ISA({name}, {base or 'none'}, {bits(features)})" for name, base, _, features in rows]
    return "/* Generated by setup.py from its ISAS table. */\n" + "\n".join(lines) + "\n"


def identity(objects):
    """The name of the compiled code in tuning files: another name for each change that may make it faster or slower.

    The names of the kernels' object files are hashes of all that made them. Of the loops their text counts.
    """
    found = hashlib.sha256(repr(sorted(Path(each).name for each in objects)).encode())
    for source in LOOPS:
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


class BuildKernels(build_ext):
    """build_ext that first compiles the kernels, each row of ISAS with its own flags, and links them into _core."""

    user_options = [*build_ext.user_options, ("kernel-debug", None, "assertions on, light optimisation")]
    boolean_options = [*build_ext.boolean_options, "kernel-debug"]

    def initialize_options(self):
        super().initialize_options()
        self.kernel_debug = bool(os.environ.get("CONVT_DEBUG_BUILD"))
        self.parallel = CORES  # modules side by side, too

    def run(self):
        self.in_checkout = self.inplace or self.editable_mode  # setuptools' own `run` forgets the first
        super().run()

    def build_extensions(self):
        probe = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"
        self.openmp = ["-fopenmp"] if self._builds(probe, ["-fopenmp"], link=True) else []
        if not self.openmp:
            self.announce("OpenMP not found: convt will use one thread", level=3)
        known = [flag for flag in (COMPACT, STRIP) if self._builds("int main(void) { return 0; }\n", [flag], link=True)]
        for ext in self.extensions:
            usual = ["-Os"] if BRIEF.fullmatch(ext.name) else []
            level = DEBUG if self.kernel_debug else COVERAGE or usual
            ext.extra_compile_args = [*MODULE_CFLAGS, *level, *self.openmp]
            named = self.kernel_debug or (ext.name == CORE and self.in_checkout)
            ext.extra_link_args = [flag for flag in known if not (named and flag == STRIP)] + self.openmp
        super().build_extensions()

    def build_extension(self, ext):
        if ext.name == CORE:
            ext.extra_objects = self._kernel_objects()
            ext.define_macros = [*ext.define_macros, ("CONVT_IDENTITY", f'"{identity(ext.extra_objects)}"')]
        super().build_extension(ext)

    def _kernel_objects(self):
        generated = Path(self.build_temp) / "generated"
        for folder in (generated, OBJECTS):
            folder.mkdir(parents=True, exist_ok=True)
        rows = isa_rows(lambda flags: self._builds("int main(void) { return 0; }\n", flags), WANTED)
        for name in {name for name, *_ in ISAS} - {name for name, *_ in rows} if X86 else ():
            why = "CONVT_BUILD_ISAS lacks it" if WANTED and name not in WANTED else "this compiler does not know it"
            self.announce(f"{name}: left out, as {why}", level=3)
        header = generated / "isa_rows.h"
        if not header.exists() or header.read_text() != isa_header(rows):
            header.write_text(isa_header(rows))
        debug = KERNEL_DEBUG if self.kernel_debug else COVERAGE

        def compiled(source, isa_flags, *more, folder="."):
            (written,) = self.compiler.compile(
                [str(KERNELS / source)],
                output_dir=str(Path(self.build_temp) / folder),
                include_dirs=[str(KERNELS), str(generated)],
                extra_postargs=[*KERNEL_CFLAGS, *isa_flags, *debug, *more],
            )
            return written

        def kernels(name, _, isa_flags, __):
            """Their object file. It takes minutes: one that an earlier build made of the same is taken instead."""
            source = f"isa_{name}.c"
            # The same: flags, and the text with what it includes and every macro, the compiler's version and target among them.
            text = Path(compiled(source, isa_flags, "-E", "-dD", folder="preprocessed")).read_bytes()
            options = repr([self.compiler.compiler_so, KERNEL_CFLAGS, isa_flags, debug])
            kept = OBJECTS / f"{name}-{hashlib.sha256(options.encode() + text).hexdigest()}.o"
            if self.force or not kept.exists():
                with tempfile.TemporaryDirectory(dir=OBJECTS) as folder:  # there at once and whole, whoever else builds here
                    os.replace(shutil.copy(compiled(source, isa_flags), folder), kept)
            return str(kept)

        with ThreadPoolExecutor(CORES) as pool:  # those that take longest first
            return [*pool.map(kernels, *zip(*reversed(rows), strict=True)), compiled("dispatch.c", [])]

    def _builds(self, program, flags, link=False):
        """Whether the compiler knows some flags, and makes a program with them where they are those of the linker too."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.c"
            source.write_text(program)
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=flags)
                if link:
                    self.compiler.link_executable(objects, str(Path(folder) / "probe"), extra_postargs=flags)
            except Exception:
                return False
        return True


def extension(source):
    """The module of a .pyx, named after its path; a ``# distutils:`` comment in it says what it needs beyond the others."""
    name = ".".join(source.with_suffix("").parts)
    others = [KERNELS / "convt_kernels.h", *(header for folder in FOREIGN for header in folder.glob("*.h"))]
    headers = [*KERNELS.glob("*.[ch]"), EMULATED, *LOOPS] if name == CORE else others  # the loops: see identity()
    return Extension(
        name,
        [str(source)],
        include_dirs=[numpy.get_include(), str(KERNELS), *map(str, FOREIGN)],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"), ("NPY_TARGET_VERSION", "NPY_1_23_API_VERSION")],
        depends=["setup.py", *map(str, headers)],
    )


setup(
    # What is bench/ in a checkout must not be called so where others' packages are: see bench/__init__.py.
    packages=[*find_packages(include=["convt", "convt.*"]), "convt_bench", "convt_bench.peers"],
    package_dir={"convt_bench": "bench"},
    package_data={"convt_bench": ["layers.batch", "session_layers.json"]},
    ext_modules=cythonize(
        [extension(path) for path in sorted(Path("convt").rglob("*.pyx"))],
        # The C that Cython writes depends on NumPy's declarations too: a folder for each pair, so that none goes stale.
        build_dir=f"build/cython-{cython_version}-numpy-{numpy.__version__}",
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            # What threads share is guarded where there is no GIL: see _memory.pyx, and Plan.deal_for in _core.pyx.
            "freethreading_compatible": True,
            # Functions of these modules are called, not looked into, and no object of theirs is pickled: less code.
            "binding": False,
            "auto_pickle": False,
        },
    ),
    cmdclass={"build_ext": BuildKernels},
)
