"""Check that no ``/`` in a Cython file divides C integers, and print those that do.

    python tools/divisions.py

The modules are compiled with ``cdivision``, under which ``/`` between C integers, literals included, drops the remainder: 1 / 6
is 0. Write ``//`` where that is wanted, and a float operand where it is not. The types are those that Cython infers.
"""

import sys
from pathlib import Path

from Cython.Compiler import Main, Options, Pipeline
from Cython.Compiler.Scanning import FileSourceDescriptor
from Cython.Compiler.Visitor import TreeVisitor

DIRECTIVES = {"language_level": 3, "cdivision": True}  # those of setup.py that matter here


class Divisions(TreeVisitor):
    """The places of all integer divisions that are written ``/`` in a tree."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def visit_Node(self, node):
        self.visitchildren(node)

    def visit_DivNode(self, node):
        if node.operator == "/" and node.type.is_int:
            self.found.add(node.pos[1:])  # line and column
        self.visitchildren(node)


def divisions(path):
    """Return sorted pairs (line, column) of the integer divisions that are written ``/`` in a .pyx file."""
    options = Options.CompilationOptions(compiler_directives=DIRECTIVES, language_level=3, include_path=["."])
    context = Main.Context.from_options(options)
    source = Main.CompilationSource(FileSourceDescriptor(str(path)), ".".join(path.with_suffix("").parts), ".")
    phases = Pipeline.create_pyx_pipeline(context, options, Main.create_default_resultobj(source, options))
    error, tree = Pipeline.run_pipeline(phases[:-1], source)  # the last phase would write the C file
    if error:
        raise SystemExit(f"{path}: {error}")
    visitor = Divisions()
    visitor.visit(tree)
    return sorted(visitor.found)


if __name__ == "__main__":
    found = [(path, *place) for path in sorted(Path("convt").rglob("*.pyx")) for place in divisions(path)]
    for path, line, column in found:
        print(f"{path}:{line}:{column}: '/' between integers drops the remainder; wanted '//' or a float operand")
    sys.exit(bool(found))
