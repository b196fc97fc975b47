"""benchdnn's words: descriptors, batch files, and the one that ships."""

import pytest

from bench import batch, descriptor, layers


def shapes(layer):
    return layer.data_shape, layer.filter_shape, layer.result_shape, layer.strides, layer.pads_begin, layer.dilations


@pytest.mark.parametrize(
    ("text", "data", "filter", "result"),
    [
        # The spelling of benchdnn's documentation, whole.
        (
            'mb1_ic256oc128_ih16oh32kh4sh2dh0ph1_iw16ow32kw4sw2dw0pw1_n"name"',
            (1, 16, 16, 256),
            (4, 4, 256, 128),
            (1, 32, 32, 128),
        ),
        ('mb1_ic256oc128_ih16oh32kh4sh2dh0ph1_n"name"', (1, 16, 16, 256), (4, 4, 256, 128), (1, 32, 32, 128)),  # square
        ("ic3id4oc5kd3sd2", (2, 4, 4, 4, 3), (3, 3, 3, 3, 5), (2, 9, 9, 9, 5)),  # cube, mb 2, output deduced
        ("mb1ic8iw5oc8ow2kw3pw3dw2", (1, 5, 8), (3, 8, 8), (1, 2, 8)),  # one axis, dilation 3, no underscores
        ("g2mb1ic4oc6_ih3kh2iw5kw3", (1, 3, 5, 4), (2, 3, 4, 3), (1, 4, 7, 6)),  # two axes in a row, groups
        ("ic2oc2iw4ow9kw3sw2", (2, 4, 2), (3, 2, 2), (2, 9, 2)),  # pads deduced: none
        ("ic2oc2iw4ow6kw3sw2", (2, 4, 2), (3, 2, 2), (2, 6, 2)),  # pads deduced: 1 before, 2 after
        ("ic2oc2iw4ow8kw3sw2pw1", (2, 4, 2), (3, 2, 2), (2, 8, 2)),  # a larger output than the pads leave
    ],
)
def test_a_descriptor_has_these_shapes(text, data, filter, result):
    assert shapes(descriptor.read(text))[:3] == (data, filter, result)


def test_the_end_pads_follow_from_the_output():
    layer = descriptor.read("ic2oc2iw4ow6kw3sw2")
    assert (layer.pads_begin, layer.pads_end, layer.output_padding) == ((1,), (2,), (0,))
    layer = descriptor.read("ic2oc2iw4ow8kw3sw2pw1")
    assert (layer.pads_begin, layer.pads_end, layer.output_padding) == ((1,), (0,), (0,))
    layer = descriptor.read("ic2oc2iw4ow9kw3sw2pw1")
    assert (layer.pads_begin, layer.pads_end, layer.output_padding) == ((1,), (0,), (1,))


def test_a_name_loses_its_quotes_and_a_layer_without_one_is_called_as_it_is_written():
    assert descriptor.read('ic2oc2iw4kw3n"net:layer_1"').name == "net:layer_1"
    assert descriptor.read("ic2oc2iw4kw3").name == "ic2oc2iw4kw3"


@pytest.mark.parametrize(("text", "message"), [
    ("oc4ih4kh2", "ic is missing or 0"), ("ic4oc4", "wanted the axes"), ("ic4oc4ih4", "kh is missing or 0"),
    ("ic4oc4ih4kh2iw4", "kw is missing or 0"), ("ic4oc4id4kd2iw4kw2", "got dw"), ("ic4oc4ih4kh2sh0", "sh is missing or 0"),
    ("ic4oc4ih4kh2qh3", "'qh3' does not start with a field"), ("ic4oc4ihkh2", "wanted a whole number of at least 0 after ih"),
    ("ic-4oc4ih4kh2", "after ic, got '-4'"), ("ic4oc4ih4kh2oh9", "needs negative pads"),
    ("ic4oc4ih4kh2ph3", "axis h of the output is empty"), ("g3ic4oc4ih4kh2", "g: got 3, wanted a divisor of Cin, 4"),
    ("mb0ic4oc4ih4kh2", "N: got 0, wanted an integer of at least 1"),
])  # fmt: skip
def test_a_malformed_descriptor_says_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=message):
        descriptor.read(text)


def test_the_table_survives_its_descriptors():
    for layer in layers.parse(layers.TABLE):
        again = descriptor.read(descriptor.write(layer))
        assert (again.name, shapes(again), again.groups) == (layer.name, shapes(layer), layer.groups)


def test_the_table_survives_a_batch_file(tmp_path):
    known = layers.parse(layers.TABLE)
    entries = read(tmp_path, batch.batch_text(known))
    assert [(entry.layer.name, *shapes(entry.layer)) for entry in entries] == [(each.name, *shapes(each)) for each in known]
    assert {entry[1:] for entry in entries} == {("f32", "NXC", False)}


def read(tmp_path, text, note=pytest.fail):
    path = tmp_path / "file.batch"
    path.write_text(text)
    return list(batch.Batch(note).read(path))


LINE = "mb1ic2oc2iw4kw3"


def test_knobs_hold_until_reset_and_multiply(tmp_path):
    entries = read(
        tmp_path,
        f"""
        {LINE}  # a comment
        --dt=f32,bf16:bf16:bf16 --dir=FWD_B --stag=axb --dtag=axb --mb=5
        --deconv --attr-post-ops= --wtag=any {LINE}
        --reset {LINE}
        """,
    )
    assert [(entry.layer.batch, *entry[1:]) for entry in entries] == [
        (1, None, None, None), (5, "f32", "NXC", True), (5, "bf16", "NXC", True), (1, None, None, None),
    ]  # fmt: skip


def test_a_backslash_joins_lines(tmp_path):
    (entry,) = read(tmp_path, "mb1ic2\\\noc2\\\niw4kw3\n")
    assert entry.layer.data_shape == (1, 4, 2)


def test_files_name_each_other_from_where_they_are(tmp_path):
    (tmp_path / "shapes").write_text(LINE)
    (entry,) = read(tmp_path, "--dir=FWD_D --batch=shapes")
    assert entry.bias is False


def test_what_only_benchdnn_needs_is_passed_over_with_a_note(tmp_path):
    notes = []
    assert len(read(tmp_path, f"--mode=P -v5 --perf-template=%-time% {LINE}", notes.append)) == 1
    assert notes == [f"{knob} is ignored: it only controls how benchdnn runs" for knob in ("--mode", "-v5", "--perf-template")]


@pytest.mark.parametrize(("text", "message"), [
    ("ic2oc2iw4", "file.batch:3: ic2oc2iw4: kw is missing"),
    ("--dir=BWD_D", "file.batch:3: unknown direction 'BWD_D'; known: FWD_B, FWD_D, FWD_I"),
    ("--dt=u8", "file.batch:3: unknown dtype 'u8'"), ("--dt=f32:bf16:bf16", "file.batch:3: f32:bf16:bf16 mixes dtypes"),
    ("--stag=nChw16c", "file.batch:3: unknown tag 'nChw16c'"),
    (f"--stag=axb --dtag=abx {LINE}", "file.batch:3: --stag and --dtag differ"),
    ("--attr-post-ops=relu", "file.batch:3: --attr-post-ops=relu changes the computation"),
    ("--alg=WINO", "file.batch:3: --alg=WINO is not supported, only --alg=direct"),
    ("--conv", "file.batch:3: unknown option --conv"), ("--mb=two", "file.batch:3: wanted a whole number, got 'two'"),
    ("--batch=absent", "file.batch:3: .*absent"), ("--batch=file.batch", "file.batch:3: .* includes itself"),
])  # fmt: skip
def test_a_bad_line_is_named_by_its_number(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, f"# first\n{LINE}\n{text}\n")
