"""Tests of `python -m bench.cores`, which analyses plans for many threads: the tasks of a plan, the work of a layer, and the
thread that runs each task."""

import json

import numpy as np
import pytest
from cases import ISAS, pretend, using_isa

import convt
from bench import cores, layers
from bench.problem import Problem
from convt._plan.run import contiguous

pytestmark = pytest.mark.skipif("avx2" not in ISAS, reason="this CPU lacks avx2")


@pytest.fixture(autouse=True)
def plans_are_those_of_one_machine():
    """Use the constants of one machine, so that the choices for the layers below are the same everywhere."""
    with using_isa("avx2"), pretend(l1=32 << 10, l2=512 << 10, l3=32 << 20):
        yield


LAYERS = {layer.name: layer for layer in layers.parse(layers.TABLE)}
COUNTS = (1, 2, 5, 16, 64)


def made(name, dtype="f32", layout="NXC", algorithm="auto"):
    """Yield for each number of threads: the number, the plan of a layer, the function that returns its work, and its tables."""
    layer = LAYERS[name]
    data = layer.data_shape if layout == "NXC" else (layer.batch, layer.cin, *layer.size)
    filter = np.zeros(layer.filter_shape, cores.DTYPES[dtype])
    keywords = {**cores.keywords(Problem(layer, dtype, layout)), "algorithm": algorithm}
    operator = convt.ConvTranspose(filter, backend="native", **keywords)._plans
    for threads in COUNTS:
        with convt.num_threads(threads), cores.recorded_plans() as found:
            plan = contiguous(operator, operator.attributes.problem(data)).plan
        yield threads, plan, *found[id(plan)]


@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize(
    "name", ["dcgan_first", "pix2pix_up7", "fcn8s_bilinear_dw", "selfie_seg", "flownets_deconv2", "gtcrn_dw"]
)
def test_every_task_is_run_once_and_by_a_thread_that_there_is(name, layout):
    for threads, plan, task_work, tables in made(name, layout=layout):
        if task_work is None and not tables[0].parallel_blocks:  # blocks run in turn, and threads share each block
            plan = tables[1]
        shares, task_chunk = plan.task_shares(threads)
        if shares is None:
            assert 1 <= task_chunk <= plan.tasks
        else:
            assert len(shares) == plan.threads(threads)
            assert sorted(task for share in shares for task in share) == list(range(plan.tasks))


@pytest.mark.parametrize("name", ["dcgan_first", "unet_up1", "pointpillars_4", "maskrcnn"])
def test_tasks_of_direct_multiply_what_the_layer_does(name):
    """Check layers without borders, whose tasks are shares of one class or of equally large ones."""
    for _, plan, task_work, tables in made(name):
        works, specs = task_work(*tables), tables[5]
        rows = sum(each.decided.rows * each.panels[:, 0].sum() * each.decided.taps for each in specs)
        assert len(works) == plan.tasks
        assert 2 * rows * LAYERS[name].cin == LAYERS[name].flops
        assert works.max() <= max(each.decided.cut.cycles for each in specs) and (works > 0).all()


@pytest.mark.parametrize("name", ["fcn8s_bilinear_dw", "fsrcnn_x3", "liteflownet_dw", "openvino_seed"])
def test_tasks_of_depthwise_multiply_what_the_layer_does(name):
    layer = LAYERS[name]
    outputs = np.prod(layer.output) * layer.cout * layer.batch
    for _, plan, task_work, tables in made(name, algorithm="depthwise"):
        works = task_work(*tables)
        assert len(works) == plan.tasks
        # One product per output and tap, and one store per output. Runs are as long as the axis, or one tap longer at its ends.
        assert works.sum() == pytest.approx(layer.flops / 2 + outputs, rel=0.15)


@pytest.mark.parametrize("layout", ["NXC", "NCX"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_every_layer_is_told(dtype, layout):
    for layer in LAYERS.values():
        problem = Problem(layer, dtype, layout)
        one = cores.expected(problem, 1)
        assert one.balance == pytest.approx(1), layer.name
        for threads in (2, 16):
            found = cores.expected(problem, threads, one.scale)
            assert 0 < found.balance <= 1.0001 and found.threads <= threads, layer.name
            assert found.cycles <= 1.05 * one.cycles and found.workspace > 0, layer.name


def test_two_threads_are_busy_to_the_end():
    for layer in LAYERS.values():
        problem = Problem(layer, "f32", "NXC")
        one, two = cores.expected(problem, 1), cores.expected(problem, 2)
        assert one.cycles / two.cycles > 1.8, layer.name


def test_tasks_are_taken_by_whoever_is_free():
    class Grabbing:
        def __init__(self, task_chunk):
            self.task_chunk = task_chunk

        def threads(self, available):
            return available

        def task_shares(self, threads):
            return None, self.task_chunk

    works = np.array([5.0, 1, 1, 1, 1, 1])
    assert cores.slowest(Grabbing(1), works, 2) == 5
    assert cores.slowest(Grabbing(3), works, 2) == 7


def test_blocks_are_shared_out_where_they_end_first():
    """Check resunet3d in NCX on 64 threads."""
    for threads, plan, task_work, tables in made("resunet3d", layout="NCX"):
        if threads == 64:
            assert task_work is None and tables[0].parallel_blocks and plan.tasks == tables[0].cut.total


def test_the_command_prints_a_table_and_writes_it(tmp_path, capsys):
    rows = [{"name": "mine", "N": 1, "Cin": 64, "Cout": 32, "in": [32, 32], "k": 4, "s": 2, "pb": 1, "pe": 1}]
    (tmp_path / "layers.json").write_text(json.dumps(rows))
    out = tmp_path / "out.json"
    arguments = ["--layers", str(tmp_path / "layers.json"), "--threads", "2,16", "--json", str(out)]
    assert cores.main(arguments) == 0
    assert "mine" in capsys.readouterr().out
    (row,) = json.loads(out.read_text())["layers"]
    assert set(row["threads"]) == {"2", "16"} and 0.8 < row["threads"]["2"]["efficiency"] < 1.1
    # At this bandwidth, memory is the only limit.
    assert cores.main([*arguments, "--bandwidth", "1e-6"]) == 0
    (row,) = json.loads(out.read_text())["layers"]
    assert row["threads"]["16"]["efficiency"] == pytest.approx(row["threads"]["2"]["efficiency"] / 8)


def test_threads_have_as_many_tasks_of_rows():
    """Check fcn8s in NCX: 568 rows in 34 tasks would leave thirteen of 16 threads waiting for three."""
    for threads, plan, task_work, tables in made("fcn8s", layout="NCX", algorithm="rows"):
        if threads >= 16:
            works = task_work(*tables)
            assert works.sum() / threads > 0.93 * cores.slowest(plan, works, threads)
