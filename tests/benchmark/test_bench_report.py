"""What the benchmark shows and keeps: rows, summaries, the comparison of two runs, the HTML page."""

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from bench import __main__ as cli
from bench import compare, layers, machine, page, palette, peers, picture, plots, tables
from bench.problem import Problem
from bench.record import Record
from bench.rounds import Result
from bench.worker import Setting

LAYERS = layers.parse(
    """
    name   family  N  Cin  Cout  g  in   k    s  pads  op  d  source
    wide   test    1  64   64    1  8x8  2x2  2  0     0   1  two axes
    thin   test    1  2    2     1  99   4    2  1     0   1  one axis
    """
)
WIDE = LAYERS[0]
HERE = {"cpu": "A <fast> CPU", "cores": 1}


def result_of(peer, *seconds, layer=WIDE, neighbours=0.0, slowed=False, status="ok"):
    rounds = [{"median": each, "calls": 9, "neighbours": neighbours, "slowed": slowed} for each in seconds]
    return Result(Problem(layer, "f32", "NXC"), Setting(1), peer, status, "", 1e-7, rounds)


def record_of(*results, complete=True):
    record = Record({"started": "today", "machine": HERE, "command": ["--quick"]}, complete=complete)
    record.versions = {result.peer: "1.0" for result in results}
    record.limits = {Setting(1): machine.Limits({"f32": 100.0}, 10.0)}
    record.results = list(results)
    return record


# ---------------------------------------------------------------- tables


def test_the_limit_is_the_slower_of_operations_and_bytes():
    problem = Problem(WIDE, "f32", "NXC")
    assert problem.bytes == 4 * (8 * 8 * 64 + 4 * 64 * 64 + 16 * 16 * 64)
    assert machine.Limits({"f32": 1.0}, 1e9).seconds(problem) == pytest.approx(WIDE.least_flops / 1e9)
    assert machine.Limits({"f32": 1e9}, 1.0).seconds(problem) == pytest.approx(problem.bytes / 1e9)
    assert machine.Limits({}, 1.0).seconds(problem) is None


@pytest.mark.parametrize(
    "kernel, stride, dilation, share",
    [(4, 2, 1, 2 / 3), (2, 2, 1, 1), (3, 2, 1, (1 + 4 / 3) / 3), (16, 8, 1, 2 / 3), (3, 1, 1, 2 / 3), (2, 3, 1, 1),
     (3, 2, 2, 2 / 3), (5, 2, 1, 2 / 3), (1, 1, 1, 1)],
)  # fmt: skip
def test_winograd_saves_multiplications_of_phases_with_several_taps(kernel, stride, dilation, share):
    layer = replace(WIDE, kernel=(kernel, 1), strides=(stride, 1), dilations=(dilation, 1), pads_begin=(0, 0), pads_end=(0, 0))
    assert layer.least_flops == pytest.approx(share * layer.flops)
    few = replace(layer, cout=8)
    assert few.least_flops == few.flops


def test_the_summary_says_what_fraction_of_the_limit_each_library_reaches():
    problem, limits = Problem(WIDE, "f32", "NXC"), machine.Limits({"f32": 1.0}, 1e9)
    setting, rounds = Setting(1), [{"median": 2 * limits.seconds(problem)}]
    results = [Result(problem, setting, "convt", "ok", "", 0.0, rounds), Result(problem, setting, "torch", "failed", "")]
    line = f"convt reaches 50% of the limit (geometric mean of 1 layers), least 50% ({WIDE.name})"
    assert tables.reached([results], limits) == [line]
    assert tables.reached([results], machine.Limits({}, 1.0)) == []


def test_of_two_measurements_of_the_limits_the_better_counts():
    both = machine.Limits({"f32": 2.0, "f64": 1.0}, 5.0).or_better(machine.Limits({"f32": 3.0}, 4.0))
    assert both == machine.Limits({"f32": 3.0, "f64": 1.0}, 5.0)


def test_a_row_holds_the_figures_against_the_limits():
    ours, theirs = result_of("convt", 1e-3), result_of("torch", 2e-3)
    limits = machine.Limits({"f32": 2 * WIDE.flops / 1e6}, 1e6)
    cells = dict(zip(tables.COLUMNS, tables.row(ours, [ours, theirs], limits), strict=True))
    assert (cells["ms"], cells["of peak"], cells["of limit"], cells["speedup"]) == ("1.000", "50%", "50%", "")
    cells = dict(zip(tables.COLUMNS, tables.row(theirs, [ours, theirs], machine.Limits({}, 1.0)), strict=True))
    assert (cells["of peak"], cells["of limit"], cells["speedup"]) == ("-", "-", "2.00x")


def test_a_figure_taken_beside_other_work_is_marked():
    quiet, loud, slow = result_of("convt", 1e-3), result_of("torch", 1e-3, neighbours=1.0), result_of("jax", 1e-3, slowed=True)
    marks = [tables.row(result, [], machine.Limits({}, 1.0))[2] for result in (quiet, loud, slow)]
    assert marks == ["1.000", "*1.000", "*1.000"]


def test_cold_figures_stand_beside_the_warm_ones(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # as pytest-xdist sets it; all columns are printed without it
    ours, theirs = result_of("convt", 1e-3), result_of("torch", 2e-3)
    wrong = result_of("convt", status="failed", layer=LAYERS[1])
    ours.cold, theirs.cold = [{"median": 4e-3}, {"median": 3e-3}], [{"median": 4.5e-3}]
    tables.show(record_of(ours, theirs, wrong))
    out = capsys.readouterr().out
    (head,) = [line for line in out.splitlines() if line.startswith("layer")]
    (row,) = [line for line in out.splitlines() if " torch " in line and line.startswith("wide")]
    assert head.index("cold ms") > head.index("speedup") > 0
    assert row.split()[-4:-1] == ["2.00x", "4.500", "1.50x"]
    assert "speedup over torch: 2.00 (geometric mean), convt is faster on 1 of 1\n" in out
    assert "speedup over torch with cold caches: 1.50 (geometric mean), convt is faster on 1 of 1\n" in out
    assert f"cold: {tables.COLD_LEGEND['cold']}\n" in out


def test_a_run_fits_the_terminal_and_explains_the_columns_that_it_shows(capsys, monkeypatch):
    record = record_of(result_of("convt", 1e-3), result_of("torch", 2e-3))
    record.note("onednn-plain is skipped: libdnnl.so.3: no such file; install it with: pip install onednn-cpu-gomp")
    for columns, explained in (50, False), (300, True):
        monkeypatch.setenv("COLUMNS", str(columns))
        tables.show(record)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines[3:])) <= columns
        assert any(line.startswith("GB/s: ") for line in lines) == explained
        assert any(line.startswith("speedup: ") for line in lines)


def test_lines_are_printed_with_the_columns_that_fit(monkeypatch, capsys):
    columns = {"layer": 20, "cycles": 8, "before ms": 9, "expected ms": 11, "ratio": 6, "winner": 21, "how": 40}
    cells = ["up/" * 30, "3.45e+05", "12.345", "11.111", "1.22", "scatter:amx_one", "a text"]
    needed = "layer", "ratio", "winner"
    for width, shown in (("80", needed), ("", columns)):
        monkeypatch.setenv("COLUMNS", width)
        lines = tables.Lines(columns, needed, ("layer",))
        lines.print(cells)
        *missing, head, row = capsys.readouterr().out.splitlines()
        assert bool(missing) == (width == "80") and all(name in head for name in shown)
        assert cells[0] in row and "1.22" in row and "scatter:amx_one" in row
        assert (len(head) <= 80) == (width == "80")


def test_the_summary_is_a_geometric_mean_for_each_peer_and_for_the_best():
    problems = [
        [result_of("convt", 1.0, layer=layer), result_of("torch", a, layer=layer), result_of("openvino", b, layer=layer)]
        for layer, a, b in zip(LAYERS, (8.0, 0.5), (2.0, 2.0), strict=True)
    ]
    assert tables.summary(problems) == [
        "speedup over torch: 2.00 (geometric mean), convt is faster on 1 of 2",
        "speedup over openvino: 2.00 (geometric mean), convt is faster on 2 of 2",
        "speedup over the fastest other library on each layer: 1.00 (geometric mean), convt is faster on 1 of 2",
    ]


def test_the_mean_leaves_out_what_was_measured_beside_other_work():
    problems = [[result_of("convt", 1.0, layer=layer), result_of("torch", 2.0, layer=layer)] for layer in LAYERS]
    problems[0][1].rounds[0]["neighbours"] = 1.0
    problems[0][1].rounds[0]["median"] = 400.0
    counted = "2.00 (geometric mean), convt is faster on 1 of 1 (1 marked * not counted)"
    assert tables.summary(problems) == [f"speedup over torch: {counted}"]
    problems[1][0].rounds[0]["neighbours"] = 1.0
    (line,) = tables.summary(problems)
    assert line == "speedup over torch: no mean, because other programs used the cores during all measurements (2 marked *)"


def test_a_narrow_terminal_shows_the_important_columns_without_other_characters_than_ascii(monkeypatch, capsys):
    named = replace(LAYERS[0], name="a [long] name of a layer of a network")
    ours, theirs = result_of("convt", 1e-3, layer=named), result_of("torch-channels_last", 2e-3, layer=named)
    record = record_of(ours, theirs)
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        tables.show(record)
        out = capsys.readouterr().out.partition("a wider terminal" if width == 80 else "speedup over")[0]
        head = next(line for line in out.splitlines() if "layer" in line)
        assert ("GB/s" in head) == (width == 200) and all(word in head for word in ("layer", "library", "ms", "speedup"))
        assert "[long]" in out and "2.00x" in out and "torch-channels_last" in out and "\N{HORIZONTAL ELLIPSIS}" not in out


def test_the_summary_tells_layers_that_are_known_from_their_neighbours():
    problems = [
        [result_of("convt", 1.0, layer=layer), result_of("torch", a, layer=layer), result_of("openvino", b, layer=layer)]
        for layer, a, b in zip((LAYERS[0], replace(LAYERS[1], name="near_it_0")), (8.0, 0.5), (4.0, 2.0), strict=True)
    ]
    assert tables.summary(problems)[-2:] == [
        "speedup over the fastest other library on each known layer: 4.00 (geometric mean), convt is faster on 1 of 1",
        "speedup over the fastest other library on each random neighbour: 0.50 (geometric mean), convt is faster on 0 of 1",
    ]


def test_the_summary_of_ncx_tells_peers_whose_data_is_reordered_outside_the_clock():
    def problems(layout):
        found = [result_of("convt", 1.0), result_of("onednn-any", 2.0), result_of("onednn-plain", 3.0)]
        for result in found:
            result.problem = replace(result.problem, layout=layout)
        return [found]

    best, mean = "the fastest other library without untimed reordering on each layer", "3.00 (geometric mean)"
    assert f"speedup over {best}: {mean}, convt is faster on 1 of 1" in tables.summary(problems("NCX"))
    assert not any("reordering" in line for line in tables.summary(problems("NXC")))


# ---------------------------------------------------------------- compare


def compared(tmp_path, before, after, *options):
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for record, path in zip((before, after), paths, strict=True):
        record.save(path)
    return cli.main(["compare", *options, *paths])


def other_version(record):
    record.versions["torch"] = "2.0"
    return record


ONE, BOTH = record_of(result_of("convt", 1.0)), record_of(result_of("convt", 1.0), result_of("convt", 1.0, layer=LAYERS[1]))
WITH_TORCH = record_of(result_of("convt", 1.0), result_of("torch", 2.0))
SLOWER = result_of("convt", 1.3), result_of("torch", 2.6)


@pytest.mark.parametrize("before, after, options, code, says", [
    (WITH_TORCH, WITH_TORCH, "", 0, "compared 1 problem"),
    (BOTH, record_of(result_of("convt", 1.0), result_of("convt", 1.15, layer=LAYERS[1])), "", 1,
     "slower: thin (f32, NXC, prepacked, 1 thread): "),
    (BOTH, record_of(result_of("convt", 1.0), result_of("convt", 1.15, layer=LAYERS[1])), "", 1, "+15.0%"),
    (ONE, record_of(result_of("convt", 1.07)), "", 0, "within noise"),
    (ONE, record_of(result_of("convt", 1.07)), "--least=5", 1, "slower: wide"),
    (record_of(result_of("convt", 1.0, 1.2, 1.4)), record_of(result_of("convt", 1.17, 1.2, 1.2)), "", 0, "within noise"),
    (WITH_TORCH, record_of(*SLOWER), "", 0, "the other libraries took 1.300 times as long"),  # so the machine is slower
    (WITH_TORCH, other_version(record_of(*SLOWER)), "", 1, "slower: wide"),
    (ONE, record_of(result_of("convt", status="WRONG")), "", 1, "WRONG, was timed before"),
    (BOTH, record_of(result_of("convt", 1.0), complete=False), "", 0,
     "1 problem of the first run missing in the second, which is partial"),
    (ONE, record_of(), "", 2, "compared 0 problems"),
])  # fmt: skip
def test_a_second_run_is_compared_with_the_first(before, after, options, code, says, tmp_path, capsys):
    assert compared(tmp_path, before, after, *options.split()) == code
    printed = capsys.readouterr()
    assert says in printed.out + printed.err and printed.out.count("slower: ") == (code == 1)


def test_a_table_has_a_row_for_each_layer_and_one_table_for_each_setting(tmp_path, capsys):
    """Ratios are divided by the machine's change of speed, here two. The last layer has no time before."""
    other = [replace(LAYERS[1], name=name) for name in ("broken", "fixed")]
    ncx = [result_of("convt", each) for each in (1.0, 1.0)]
    for each in ncx:
        each.problem = replace(each.problem, layout="NCX")
    before = [result_of("convt", 1.0), result_of("torch", 1.0), result_of("convt", 1.0, layer=LAYERS[1])]
    before += [result_of("convt", 1.0, layer=other[0]), result_of("convt", layer=other[1], status="failed"), ncx[0]]
    after = [result_of("convt", 2.1), result_of("torch", 2.0), result_of("convt", 3.0, layer=LAYERS[1])]
    after += [result_of("convt", layer=other[0], status="WRONG"), result_of("convt", 1.0, layer=other[1]), ncx[1]]
    assert compared(tmp_path, record_of(*before), record_of(*after)) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    start = lines.index("f32, NXC, prepacked, 1 thread") + 1
    assert lines[start : start + 5] == [
        "layer before ms after ms ratio verdict", "wide 1000.000 2100.000 1.050 within noise",
        "thin 1000.000 3000.000 1.500 slower", "broken 1000.000 - - WRONG", "fixed - 1000.000 - not compared",
    ]  # fmt: skip
    assert lines[lines.index("f32, NCX, prepacked, 1 thread") + 2] == "wide 1000.000 1000.000 0.500 faster"


def test_precisions_are_not_compared_with_each_other(tmp_path, capsys):
    exact, less = result_of("convt", 1.0), result_of("convt", 0.5)
    less.problem = replace(less.problem, precision="medium")
    assert compared(tmp_path, record_of(less), record_of(exact)) == 0
    out = capsys.readouterr().out
    assert "compared 0 problems" in out and "1 problem of the first run missing in the second" in out
    slower = result_of("convt", 2.0)
    slower.problem = less.problem
    assert compared(tmp_path, record_of(exact, less), record_of(exact, slower)) == 1
    assert "slower: wide (f32, precision medium, NXC, prepacked, 1 thread)" in capsys.readouterr().out
    path = tmp_path / "b.json"
    before = json.loads(path.read_text())
    for each in before["results"]:  # a file from before there were precisions
        del each["precision"]
    path.write_text(json.dumps(before))
    assert [each["precision"] for each in compare._read(str(path))["results"]] == ["highest", "highest"]


def test_a_file_that_is_no_result_is_refused(tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(SystemExit) as stop:
        compare.main([str(path), str(path)])
    assert stop.value.code == 2
    assert "not a result of format" in capsys.readouterr().err


def test_an_infinite_error_is_valid_json(tmp_path):
    path = tmp_path / "out.json"
    result = result_of("convt", status="WRONG")
    result.error = float("inf")
    record_of(result).save(str(path))
    assert json.loads(path.read_text())["results"][0]["error"] is None


# ---------------------------------------------------------------- the page


class Page(HTMLParser):
    """The tags, texts and table cells of a page; unbalanced tags are an error."""

    VOID = {"meta", "input"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.titles, self.rows = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append(dict(attributes).get("data-value"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.titles if self.open[-1:] == ["title"] else self.texts).append(data)


RESULTS = (
    result_of("convt", 1e-3), result_of("torch-contiguous", 2e-3, neighbours=1.0), result_of("jax", status="WRONG"),
    result_of("convt", 2e-3, layer=LAYERS[1]), result_of("onednn-any", 1e-3, layer=LAYERS[1]),
)  # fmt: skip


def test_the_page_holds_everything_itself(tmp_path):
    record = record_of(*RESULTS)
    record.note("<b>brackets</b> are text")
    text = page.write(record, tmp_path / "new" / "folder").read_text()
    parsed = Page(text)
    assert [each["class"] for each in parsed.all("svg") if "plot" in each.get("class", "")] == ["plot bars", "plot roofline"]
    assert not re.search(r"https?:|src=|href=|url\(|@import", text)
    assert {"wide", "thin", "2.00x", "*2.000", "WRONG", "A <fast> CPU", "<b>brackets</b> are text"} <= set(parsed.texts)
    assert "f32, NXC, prepacked, 1 thread" in parsed.texts
    assert "prefers-color-scheme: dark" in text


def test_marks_of_pictures_show_their_values_on_hover():
    titles = Page(page.html(record_of(*RESULTS))).titles
    assert "wide, torch-contiguous: *2.000 ms; convt: 1.000 ms; speedup 2.00*" in titles
    assert f"2 thin, onednn-any: 1.000 ms, {RESULTS[4].gflops:.1f} GFLOP/s, 0.50x of convt's time" in titles
    assert f"1 wide, convt: 1.000 ms, {RESULTS[0].gflops:.1f} GFLOP/s" in titles


def test_table_cells_have_the_number_to_sort_by():
    parsed = Page(page.html(record_of(*RESULTS)))
    heads = ["#", *tables.COLUMNS]
    _, ours, theirs, wrong, *_ = (dict(zip(heads, row)) for row in parsed.rows)  # noqa: B905
    assert (ours["#"], ours["ms"], ours["speedup"], ours["layer"]) == ("1", "1", None, None)
    assert (theirs["#"], theirs["ms"], theirs["speedup"], theirs["error"]) == ("1", "2", "2", "1e-07")
    assert (wrong["#"], wrong["ms"], wrong["GFLOP/s"]) == ("1", None, None)
    assert len(parsed.all("button")) == len(heads)


def test_footnotes_follow_their_table():
    ncx = result_of("convt", 1e-3)
    ncx.problem = replace(ncx.problem, layout="NCX")
    sections = page.html(record_of(*RESULTS, ncx)).split("<section>")[1:]
    notes = [section.split("</table>")[1] for section in sections]
    assert [tables.STAR_LEGEND in note for note in notes] == [True, False]
    assert all(tables.LEGEND["of peak"] in note for note in notes)


def test_a_page_without_anything_to_draw_is_still_a_page():
    parsed = Page(page.html(record_of(result_of("convt", status="failed"), complete=False)))
    assert not parsed.all("svg")
    assert any("Interrupted" in text for text in parsed.texts)
    assert "Nothing was measured." in Page(page.html(record_of())).texts


def test_limits_that_were_not_measured_are_not_drawn():
    problems = [[RESULTS[0]]]
    assert "peak" not in plots.roofline(problems, machine.Limits({}, 10.0), "f32")
    for gbs in (1e-6, 1e6):  # the layer far right and far left of the ridge
        assert "peak 100 GFLOP/s" in plots.roofline(problems, machine.Limits({"f32": 100.0}, gbs), "f32")


def test_labels_of_45_layers_do_not_collide():
    labels = [(index * index / 20.25, str(index)) for index in range(45)]
    for width in plots.WIDTHS.values():
        rows = plots._label_rows(labels, width)
        for n, (at, _) in enumerate(labels):
            before = [labels[m] for m in range(n) if rows[m] == rows[n]]
            assert all((at - other) / 100 * width >= 6.5 * len(text) for other, text in before)


@pytest.mark.parametrize(("low", "high"), [(0.9, 2.1), (0.3, 30), (0.02, 3000), (1e-3, 1e6)])
def test_an_axis_has_a_few_round_ticks(low, high):
    ticks = plots.Axis(low, high).ticks()
    assert 3 <= len(ticks) <= 10 and ticks == sorted(ticks)
    assert low <= ticks[0] and ticks[-1] <= high


def test_each_library_has_one_colour_in_all_pictures():
    assert set(palette.COLOURS) == set(peers.LIBRARIES)
    assert len(set(palette.COLOURS.values())) == len(peers.LIBRARIES)
    assert palette.colour("torch-contiguous") == palette.colour("torch") == palette.COLOURS["torch"]
    record = record_of(*RESULTS)
    _, problems = next(record.groups())
    roofline = plots.roofline(problems, record.limits[Setting(1)], "f32")
    for drawn in (plots.ratios(problems), roofline, picture.draw(record.to_json())):
        colours = set(re.findall(r'<(?:rect x|path)[^>]* fill="(.*?)"', drawn)) - {"currentColor"}
        assert colours == {palette.COLOURS["torch"], palette.COLOURS["onednn"]}


# ---------------------------------------------------------------- the README's picture


def test_the_picture_has_a_bar_for_each_layer_in_the_colour_of_the_best(tmp_path):
    record = record_of(
        result_of("convt", 1.0), result_of("slow", 4.0), result_of("fast", 2.0),
        result_of("convt", 3.0, layer=LAYERS[1]), result_of("slow", 1.5, layer=LAYERS[1]), result_of("broken", layer=LAYERS[1]),
    )  # fmt: skip
    figures, drawn = tmp_path / "figures.json", tmp_path / "speed.svg"
    record.save(figures)
    assert picture.ratios(json.loads(figures.read_text())) == [(2.0, "wide", "fast"), (0.5, "thin", "slow")]
    assert picture.main([str(figures), str(drawn)]) == 0
    text = drawn.read_text()
    assert "wide: 2.00 times as fast as fast" in text and "thin: 0.50 times as fast as slow" in text
    assert "geometric mean 1.00" in text
    assert ElementTree.fromstring(text).tag.endswith("svg")


def test_a_picture_of_nothing_is_an_error(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    record_of(result_of("convt", 1.0)).save(figures)
    assert picture.main([str(figures), str(tmp_path / "speed.svg")]) == 1
    assert "no layer" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        picture.main([str(figures)])
    assert stopped.value.code == 2 and not (tmp_path / "speed.svg").exists()
