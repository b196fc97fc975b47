"""Build of convt: the Cython modules, and the micro-kernels of each instruction set.

ISAS is the only table of instruction sets. A row names its base row and adds compiler flags for ``convt/kernels/isa_<name>.c``
and CPU features. An instruction set uses the kernels of its base unless its own file replaces them, and requires all CPU
features of its row and of its bases. Names, bases and features go into a generated header for the dispatcher
(convt/kernels/dispatch.c), from which ``convt.show_config()`` gets them. Rows are ordered from the smallest to the largest
instruction set.
"""

import hashlib
import multiprocessing
import os
import re
import runpy
import shutil
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from Cython import __version__ as cython_version
from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

read = runpy.run_path("convt/_base/environment.py")["read"]  # reads environment variables

X86 = sysconfig.get_platform().endswith(("x86_64", "amd64"))  # the target machine, which may differ from this one
ARM = sysconfig.get_platform().endswith(("aarch64", "arm64"))

BASELINE = ("baseline", None, [], [])  # for any CPU
# Each row: name, base, compiler flags and CPU features (names in kernels/cpu_features.h) in addition to those of the base.
X86_ISAS = [
    ("avx2", "baseline", ["-mavx2", "-mfma", "-mf16c"], ["AVX2", "FMA", "F16C"]),
    ("avx512", "avx2", ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
     ["AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"]),
    ("avx512_bf16", "avx512", ["-mavx512bf16"], ["AVX512_BF16"]),
    # With -O2, Winograd and the loops over tiles are 2 to 3% slower.
    ("avx512_amx", "avx512", ["-mamx-tile", "-mamx-bf16", "-O3"], ["AMX_BF16"]),
]  # fmt: skip
ARM_ISAS = [
    # Every AArch64 CPU has NEON. Instructions moved apart before registers are assigned would need more than 32 registers.
    ("neon", "baseline", ["-fno-schedule-insns"], []),
    ("neon_bf16", "neon", ["-march=armv8.2-a+bf16"], ["ARM_BF16"]),
]
ISAS = [BASELINE, *(X86_ISAS if X86 else ARM_ISAS if ARM else [])]

# tools/emulate.py: compile the instruction sets beyond AVX2 for AVX2, with functions instead of their instructions.
EMULATED = Path("tools/emulated.h")
if read("CONVT_EMULATED_BUILD"):
    ISAS[2:] = [(name, base, ["-include", str(EMULATED), "-Wno-psabi"], []) for name, base, *_ in ISAS[2:]]

# Instruction sets to build (CONVT_BUILD_ISAS=baseline,avx2, or "all"). Fewer of them take less time to build. None: those of
# this CPU in a checkout, all for a wheel.
WANTED = read("CONVT_BUILD_ISAS", ["all", *(name for name, *_ in [BASELINE, *X86_ISAS, *ARM_ISAS])])

CORE = "convt._core"  # the module that links the kernels; other modules call them through it
KERNELS = Path("convt/kernels")
PARTS = "f32", "f64", "narrow"
# The Cython files that call the kernels.
LOOPS = sorted([Path("convt/_core.pyx"), *Path("convt/algorithms").rglob("*.pyx"), *Path("convt/algorithms").rglob("*.pxd")])
FOREIGN = [Path("third_party") / name for name in ("onednn", "onnxruntime", "xla")]  # declarations of other libraries
DECLARED = {  # a .pxd file that this file makes -> the C header that it declares
    Path("convt/_run/kernels.pxd"): KERNELS / "convt_kernels.h",
    Path("convt/onnxruntime/host.pxd"): Path("third_party/onnxruntime/onnxruntime_api.h"),
    Path("convt/jax/xla.pxd"): Path("third_party/xla/xla_ffi.h"),
}
OBJECTS = Path("build/kernels")
# * no contraction, so that results do not depend on the compiler's choices;
# * no -ffast-math, because it also switches the user's whole process to flush-to-zero;
# * -g0, because the debug information that most Pythons request is nine tenths of the library;
# * no unwind tables, because C throws no exceptions and only debuggers use the tables.
CFLAGS = ["-std=gnu11", "-g0", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden",
          "-fno-asynchronous-unwind-tables"]  # fmt: skip
# -O2 with the vectorization of -O3, because the other optimisations of -O3 make micro-kernels a tenth larger, and those of
# depthwise slower.
# -Wno-maybe-uninitialized, because GCC does not see that the first iteration of a loop sets the variables that later ones read.
KERNEL_CFLAGS = [*CFLAGS, "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-Wno-maybe-uninitialized"]
MODULE_CFLAGS = [*CFLAGS, "-O2"]
# Modules that are compiled for size (-Os), because they run once per operator or call another library.
BRIEF = re.compile(
    r"convt\.(_base\.dlpack|_run\.memory|onnxruntime\.library|jax\.handler|algorithms\.(packing|onednn\..*|.*weights))"
)
DEBUG = ["-O1", "-g", "-UNDEBUG", "-DCONVT_DEBUG"]
# tools/coverage.py, which adds the flags for the counters: nothing is optimised away, and no function is inlined.
COVERAGE = ["-O0", "-Dalways_inline="] if read("CONVT_COVERAGE_BUILD") else []
# If the linker supports it: separate pages for the segments of a module add ten kilobytes to each module.
COMPACT = "-Wl,-z,noseparate-code"
# Function names serve debuggers and profilers. In a checkout, the kernels keep theirs, because tests also read them.
STRIP = "-Wl,-s"

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

# Cython translates modules in several processes only where these are forked, because new ones would run this file again.
FORKS = sys.platform == "linux"
if FORKS:
    multiprocessing.set_start_method("fork", force=True)


def isas_of_this_cpu():
    """Return the names of the instruction sets that this CPU has; all names if Linux does not list its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = set(next((line for line in lines if line.lower().startswith(("flags", "features"))), "").split())
    target = sysconfig.get_platform().endswith(os.uname().machine)  # otherwise the compiler is for another machine
    has = lambda feature: feature.lower().removeprefix("arm_") in found  # noqa: E731
    return [name for name, _, _, features in ISAS if not (found and target) or all(map(has, features))]


def isa_rows(known, wanted=None):
    """Return the rows ``(name, base, flags, features)`` that the compiler supports, among ``wanted`` (None: all rows of ISAS).

    A row includes the flags and features of its bases.
    """
    rows = {None: (None, None, [], [])}
    for name, base, flags, features in ISAS:
        if (wanted is None or name in wanted) and base in rows and known(rows[base][2] + flags):
            rows[name] = name, base, rows[base][2] + flags, rows[base][3] + features
    return list(rows.values())[1:]


def parts_of(isa):
    """Return the parts of isa_<isa>.c, which are compiled separately, the slowest first: see convt/kernels/body.h."""
    return PARTS if '"body.h"' in (KERNELS / f"isa_{isa}.c").read_text() else ("",)


def isa_header(rows):
    """Return the table as C: a line ``ISA(name, base, features)`` per row, and a line ``PART(name, name_part)`` per part."""
    bits = lambda features: " | ".join("CPU_" + feature for feature in features) or "0"  # noqa: E731
    isas = [f"ISA({name}, {base or 'none'}, {bits(features)})" for name, base, _, features in rows]
    parts = [f"PART({name}, {name}{part and '_' + part})" for name, *_ in rows for part in parts_of(name)]
    text = ["/* Generated by setup.py from its ISAS table. */", "#ifdef ISA", *isas, "#endif", "#ifdef PART", *parts, "#endif"]
    return "\n".join(text) + "\n"


def identity(objects):
    """Return the name of the compiled code in tuning files, which changes with every change that may affect its speed.

    It is a hash of the names of the kernels' object files, which are hashes of their inputs, and of the text of the loops.
    """
    found = hashlib.sha256(repr(sorted(Path(each).name for each in objects)).encode())
    for source in LOOPS:
        found.update(source.read_bytes())
    return found.hexdigest()[:16]


def cython_declarations(header):
    """Return Cython's declarations of the constants, structures and functions of a C header, as the text of a .pxd file."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = text.replace("ptrdiff_t", "Py_ssize_t").replace("*const *", "**")
    for name, members in re.findall(r"^#define (\w+_HEAD) (.*)", text, re.MULTILINE):  # with which structures begin
        text = text.replace(f"{name};", f"{members};")
    constants = re.findall(r"^#define ((?:CONVT|ORT|XLA)_[A-Z_0-9]+) [\d(]", text, re.MULTILINE)
    for names in re.findall(r"^enum {([^}]*)}", text, re.MULTILINE):
        constants += re.findall(r"[A-Za-z_]\w*", names)
    lines = [f"# Made by setup.py from {header}, which documents each name.", "",
             "from libc.stdint cimport int32_t, int64_t", "", f'cdef extern from "{header.name}" nogil:', "    enum:",
             *(f"        {name}" for name in dict.fromkeys(constants))]  # fmt: skip
    lines += [f"    ctypedef struct {name}" for name in re.findall(r"^typedef struct (\w+) \1;", text, re.MULTILINE)]
    for body, name in re.findall(r"^typedef struct(?: \w+)? {([^}]*)} (\w+);", text, re.MULTILINE):
        lines.append(f"    ctypedef struct {name}:")
        for member in (" ".join(each.split()).removeprefix("struct ") for each in body.split(";")):
            if not member or member.endswith("[]"):
                continue
            member = re.sub(r"(?<=[ *])in\b", 'in_ "in"', member.replace("*from,", "*from_,").replace("(void)", "()"))
            if "(*" in member:
                lines.append(f"        {member} noexcept nogil")
            else:  # Cython wants a line for each pointer
                kind, names = re.fullmatch(r"((?:const )?\w+) (.*)", member).groups()
                lines += [f"        {kind} {each}" for each in names.split(", ")]
    function = r"^(?:static inline )?(\w[\w ]*[ *])((?:convt|xla)_\w+)\(([^)]*)\)[;\n]"
    found = re.findall(function, text, re.MULTILINE)
    found += [(f"{result} ", name, f"const XlaApi *api, {kind} *arguments")
              for name, result, kind in re.findall(r"^ *F\(\d+, (\w+), ([\w *]+), (\w+)\)", text, re.MULTILINE)]  # fmt: skip
    for result, name, arguments in found:
        lines.append(f"    {result}{name}({'' if arguments == 'void' else arguments})")
    lines[2] += ", uint32_t" * any("uint32_t" in each for each in lines)
    return "\n".join(lines) + "\n"


def write_declarations():
    """Write each .pxd file of DECLARED that differs from `cython_declarations` of its header."""
    for path, header in DECLARED.items():
        text = cython_declarations(header)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


class BuildKernels(build_ext):
    """A build_ext that first compiles the kernels of each row of ISAS with its own flags, and links them into _core."""

    user_options = [*build_ext.user_options, ("kernel-debug", None, "assertions on, light optimisation")]
    boolean_options = [*build_ext.boolean_options, "kernel-debug"]

    def initialize_options(self):
        super().initialize_options()
        self.kernel_debug = bool(read("CONVT_DEBUG_BUILD"))
        self.parallel = CORES  # compile the modules in parallel

    def run(self):
        self.in_checkout = self.inplace or self.editable_mode  # setuptools' `run` resets `inplace`
        if not self.in_checkout:  # the wheel would include modules that a build of the checkout left
            for module in Path(self.build_lib).rglob("*.so"):
                module.unlink()
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
        wanted, lacks = WANTED, "CONVT_BUILD_ISAS lacks it"
        if wanted is None and self.in_checkout:
            wanted, lacks = isas_of_this_cpu(), "this CPU lacks it (CONVT_BUILD_ISAS=all builds it)"
        elif wanted and "all" in wanted:
            wanted = None
        rows = isa_rows(lambda flags: self._builds("int main(void) { return 0; }\n", flags), wanted)
        for name in {name for name, *_ in ISAS} - {name for name, *_ in rows}:
            why = lacks if wanted is not None and name not in wanted else "this compiler does not know it"
            self.announce(f"{name}: left out, as {why}", level=3)
        header = generated / "isa_rows.h"
        if not header.exists() or header.read_text() != isa_header(rows):
            header.write_text(isa_header(rows))
        debug = DEBUG if self.kernel_debug else COVERAGE

        def compiled(source, isa_flags, *more, folder="."):
            (written,) = self.compiler.compile(
                [str(KERNELS / source)],
                output_dir=str(Path(self.build_temp) / folder),
                include_dirs=[str(KERNELS), str(generated)],
                extra_postargs=[*KERNEL_CFLAGS, *isa_flags, *debug, *more],
            )
            return written

        def kernels(name, isa_flags, part):
            """Return the object file of a part of a row's kernels, which an earlier build may have left."""
            source, flags = f"isa_{name}.c", [*isa_flags, *([f"-DPART_{part}"] if part else [])]
            folder = f"{name}_{part}"  # no other job writes to it
            # The input is the flags and the preprocessed text with all macros, among them the compiler's version and target.
            text = Path(compiled(source, flags, "-E", "-dD", folder=f"preprocessed/{folder}")).read_bytes()
            options = repr([self.compiler.compiler_so, KERNEL_CFLAGS, flags, debug])
            kept = OBJECTS / f"{name}{part and '_' + part}-{hashlib.sha256(options.encode() + text).hexdigest()}.o"
            if self.force or not kept.exists():
                with tempfile.TemporaryDirectory(dir=OBJECTS) as atomic:  # parallel builds may make the same file
                    os.replace(shutil.copy(compiled(source, flags, folder=folder), atomic), kept)
            return str(kept)

        jobs = [(name, flags, part) for name, _, flags, _ in reversed(rows) for part in parts_of(name)]  # the slowest first
        with ThreadPoolExecutor(CORES) as pool:
            return [*pool.map(kernels, *zip(*jobs, strict=True)), compiled("dispatch.c", [])]

    def _builds(self, program, flags, link=False):
        """Check whether the compiler accepts ``flags``, and whether the linker does if ``link``."""
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
    """Return the module of a .pyx file, named after its path."""
    name = ".".join(source.with_suffix("").parts)
    others = [KERNELS / "convt_kernels.h", *(header for folder in FOREIGN for header in folder.glob("*.h"))]
    headers = [*KERNELS.glob("*.[ch]"), EMULATED, *LOOPS] if name == CORE else others  # LOOPS, because identity() reads them
    return Extension(
        name,
        [str(source)],
        include_dirs=[numpy.get_include(), str(KERNELS), *map(str, FOREIGN)],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"), ("NPY_TARGET_VERSION", "NPY_1_23_API_VERSION")],
        depends=["setup.py", *map(str, headers)],
    )


REPOSITORY = re.search(r'^Repository = "(.*)"', Path("pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]


def description():
    """Return the README for the package index: without pictures, and with links to the repository instead of relative links."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[[^]]*\]\([^)]*\)\n+", "", text).replace(" (the picture)", "")
    return re.sub(r"\]\((?!\w+:|#)([^)]+)\)", rf"]({REPOSITORY}/blob/main/\1)", text)


write_declarations()
setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    # bench/ is installed as convt_bench, because `bench` is too general a name beside other packages: see bench/__init__.py.
    packages=[*find_packages(include=["convt", "convt.*"]), "convt_bench", "convt_bench.peers"],
    package_dir={"convt_bench": "bench"},
    ext_modules=cythonize(
        [extension(path) for path in sorted(Path("convt").rglob("*.pyx"))],
        nthreads=CORES if FORKS else 0,
        # Cython's output also depends on NumPy's declarations, so each pair of versions has its own folder.
        build_dir=f"build/cython-{cython_version}-numpy-{numpy.__version__}",
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            # State that threads share is protected without the GIL: see _run/memory.pyx, and balanced_shares_for in _core.pyx.
            "freethreading_compatible": True,
            # Less code: functions of these modules are not introspected, and their objects are not pickled.
            "binding": False,
            "auto_pickle": False,
        },
    ),
    cmdclass={"build_ext": BuildKernels},
)
