"""`Plan`: what `ConvTranspose.plan` tells about a data shape."""

from dataclasses import dataclass, field, fields

from .._base import terminal
from .._base.problem import Problem
from .._model import machine
from .._run import config
from ..algorithms import ALGORITHMS, name_of
from .choose import choose
from .run import contiguous


@dataclass(frozen=True)
class Plan:
    """The plan of a data shape: algorithm, unit, threads and memory, as `ConvTranspose.plan` returns them."""

    backend: str  # "native", "onednn" or "reference"
    algorithm: str
    unit: str  # the hardware that multiplies (docs/api/convt.md); empty for other backends than "native"
    isa: str
    tile: str  # rows x columns of the register tile; empty for other backends than "native"
    threads: int
    tasks: int
    workspace_bytes: int  # bytes of all threads together, in addition to data and output
    packed_bytes: int  # bytes of the weights packed for this plan
    packed_limit: float  # maximum bytes of the operator's packed weights in all forms; a single form may exceed it
    note: str = ""  # result of "tune", or the reason for another algorithm than the chosen one
    key: str = field(default="", repr=False)  # key of `convt.algorithms.ALGORITHMS`
    problem: Problem | None = field(default=None, repr=False, compare=False)  # canonical form of the problem

    @property
    def cycles(self) -> dict[str, float]:
        """Expected cycles of each kind of work, summed over all threads, the largest first.

        The keys are names "part.kind"; `convt._model.costs` explains the kinds. The dict is empty for other backends
        than "native".
        """
        if self.backend != "native":
            return {}
        values = machine.current().profile.values
        with machine.pretend(profile=machine.current().profile.traced):
            counts = getattr(ALGORITHMS[self.key].cost(self.problem), "counts", {})
        cycles = {f"{part}.{name}": count * values[name] for (part, name), count in counts.items()}
        return dict(sorted(((name, n) for name, n in cycles.items() if n), key=lambda item: -item[1]))

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        shown = [each for each in fields(self) if each.repr and getattr(self, each.name) != ""]
        return terminal.in_html((), [(each.name, getattr(self, each.name)) for each in shown], "plan of convt")

    def explain(self) -> str:
        """Return a text of several lines that explains the plan.

        It has the algorithm and the reason for it, tasks and threads, the largest parts of the expected cycles, and the
        expected cycles of the other algorithms.

        Returns
        -------
        str
            Lines separated by newlines.

        Examples
        --------
        >>> import numpy as np, convt
        >>> op = convt.ConvTranspose(np.ones((2, 2, 64, 32), np.float32), strides=2, backend="native", algorithm="direct")
        >>> print(op.plan((1, 8, 8, 64)).explain().splitlines()[0])
        direct: one GEMM per phase (on vectors)
        """
        from . import explain as _explain  # imported here, because few processes need it

        return _explain.explain(self)


def describe(plans, problem):
    """Return the `Plan` of a problem for contiguous data. Weights are packed if the plan needs it."""
    call = contiguous(plans, problem)
    plan, key, packed = call.plan, call.form.key[0], plans.packed(call.form)
    threads = plan.threads(config.get_num_threads())
    native = plan.backend == "native"
    chosen, note = choose(plans, problem)
    if not packed.finite and key != "depthwise:vectors":  # depthwise does not treat borders separately
        note = "NaN or Inf in the filter: borders are computed separately"
    elif key != chosen:
        note = f"{chosen} does not support some values of the filter"
    return Plan(
        backend=plan.backend,
        algorithm=name_of(key) if native else plan.algorithm,
        unit=ALGORITHMS[key].unit if native else "",
        isa=plan.isa,
        tile=plan.tile if native else "",
        threads=threads,
        tasks=plan.tasks,
        workspace_bytes=threads * plan.workspace,
        packed_bytes=packed.nbytes if native else plan.packed_bytes,
        packed_limit=plans.weights.limit,
        note=note,
        key=key,
        problem=problem,
    )
