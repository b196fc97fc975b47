"""turned: the GEMM of direct with pixels as columns, for NCX data. See README.md."""

from ..stages import Stages
from . import bind, cost, schedule

STAGES = Stages(
    schedule.schedule, cost.cost, bind.recipe, bind.bind, least=cost.least,
    does="one GEMM per phase with pixels as columns; for planes (NCX)", limit=schedule.LIMIT,
    units=("vectors", "amx", "amx_two", "amx_one"),
)  # fmt: skip
