"""The pictures of the documentation. ``python docs/pictures/draw.py`` writes the SVG files into the folder of this file."""

from pathlib import Path

BLUE, GREEN, ORANGE, GREY, INK = "#9ec5fe", "#a3cfbb", "#fecba1", "#e9ecef", "#212529"


class Picture:
    """An SVG picture of boxes, texts and arrows. Its background is white, so that it is legible on light and dark pages."""

    def __init__(self, width, height):
        self._size = width, height
        self._parts = []

    def box(self, x, y, width, height, words="", fill=GREY, size=13):
        self._parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{fill}" stroke="{INK}"/>')
        lines = words.split("\n") if words else []
        for n, line in enumerate(lines):
            self.words(x + width / 2, y + height / 2 + (n - (len(lines) - 1) / 2) * (size + 3), line, size, "middle")

    def words(self, x, y, words, size=13, anchor="start"):
        words = words.replace("&", "&amp;").replace("<", "&lt;")
        place = f'x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" dominant-baseline="central"'
        self._parts.append(f'<text {place} fill="{INK}">{words}</text>')

    def arrow(self, x1, y1, x2, y2):
        self._parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" marker-end="url(#head)"/>')

    def save(self, name):
        width, height = self._size
        text = "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
            '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">',
            f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *self._parts,
            "</svg>\n",
        ])  # fmt: skip
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")


def phases():
    """Draw the two phases of an axis with kernel 4 and stride 2; each phase has two taps."""
    p = Picture(760, 300)
    p.words(20, 40, "input")
    for i in range(5):
        p.box(150 + 110 * i, 24, 44, 32, f"x{i}", BLUE)
    p.words(20, 150, "full scatter")
    p.words(20, 168, "q = 2i + t", 11)
    for q in range(12):
        p.box(122 + 52 * q, 134, 44, 32, f"q{q}", (GREEN, ORANGE)[q % 2])
    for t in range(4):
        p.arrow(150 + 110 * 2 + 22, 58, 122 + 52 * (4 + t) + 22, 132)
    p.words(400, 96, "x2 meets taps 0, 1, 2, 3", 12)
    p.words(20, 220, "phase 0 (even q)")
    p.words(180, 220, "y[2j] = w0 x[j] + w2 x[j-1]")
    p.box(400, 207, 24, 24, "", GREEN)
    p.words(20, 256, "phase 1 (odd q)")
    p.words(180, 256, "y[2j+1] = w1 x[j] + w3 x[j-1]")
    p.box(400, 243, 24, 24, "", ORANGE)
    p.words(440, 238, "both read x[j-1] and x[j], so they can be merged", 12)
    p.save("phases.svg")


def flow():
    """Draw the flow of a call from top to bottom."""
    p = Picture(760, 330)
    rows = [
        ("convt.onnx, convt.openvino, conv_transpose, ConvTranspose", "validation; pads and auto_pad become a window", BLUE),
        ("Problem", "sizes, kernel, strides, dilations, window: plain integers", BLUE),
        ("schedule.py, cost.py: schedule of least expected cost", "counts of work times costs of this CPU", GREEN),
        ("bind.py: tables for the loops", "classes, depth chunks, panels, tasks", GREEN),
        ("Plan: run(data, out)", "tasks on threads; workspace of earlier calls", ORANGE),
        ("loops.pyx: pack rows, call micro-kernels", "kernels/: register tiles of one instruction set", ORANGE),
    ]
    for n, (what, how, fill) in enumerate(rows):
        p.box(20, 14 + 52 * n, 390, 38, what, fill)
        p.words(430, 33 + 52 * n, how, 12)
        if n:
            p.arrow(215, 14 + 52 * n - 14, 215, 14 + 52 * n - 1)
    p.save("flow.svg")


def direct():
    """Draw the implicit GEMM of ``direct`` and its register tile."""
    p = Picture(760, 330)
    p.words(20, 20, "A: rows are pixels of a phase, depth is taps x in-channels", 12)
    p.box(20, 36, 200, 200, "", BLUE)
    p.box(20, 86, 200, 42, "tile: m_r rows", GREEN)
    p.box(36, 36, 60, 200, "", "none")
    p.words(66, 252, "depth chunk", 11, "middle")
    p.words(300, 20, "B: panels of n_r columns (phase, out-channel)", 12)
    for n in range(4):
        p.box(300 + 62 * n, 36, 54, 200, f"panel {n}", GREEN if n == 1 else ORANGE, 12)
    p.words(580, 20, "output, NXC", 12)
    p.box(580, 36, 160, 200, "", GREY)
    p.box(620, 86, 40, 42, "m_r x n_r", GREEN, 9)
    p.arrow(224, 107, 296, 107)
    p.arrow(552, 107, 616, 107)
    p.words(20, 282, "A task is a block of rows by a block of panels. Rows are packed per depth chunk or read in place and", 12)
    p.words(20, 302, "multiplied by each panel. Tiles of the last chunk add the bias, activate, store; others store sums.", 12)
    p.save("direct.svg")


def winograd():
    """Draw Winograd's F(3, 2) on one axis."""
    p = Picture(760, 300)
    p.words(20, 24, "F(3, 2): three outputs of a phase of two taps with four multiplications instead of six", 13)
    for n, name in enumerate(("d0", "d1", "d2", "d3")):
        p.box(20, 50 + 46 * n, 60, 34, name, BLUE)
    for n, name in enumerate(("d0 - d2", "d1 + d2", "d2 - d1", "d3 - d1")):
        p.box(170, 50 + 46 * n, 100, 34, name, BLUE)
        p.arrow(84, 67 + 46 * n, 166, 67 + 46 * n)
    for n, name in enumerate(("g0", "(g0+g1)/2", "(g0-g1)/2", "g1")):
        p.box(300, 50 + 46 * n, 100, 34, name, ORANGE)
        p.words(285, 67 + 46 * n, "x", 14, "middle")
        p.box(440, 50 + 46 * n, 60, 34, f"m{n}", GREY)
        p.arrow(404, 67 + 46 * n, 436, 67 + 46 * n)
    for n, name in enumerate(("m0 + m1 + m2", "m1 - m2", "m1 + m2 + m3")):
        p.box(570, 73 + 46 * n, 140, 34, name, GREEN)
        p.arrow(504, 90 + 46 * n, 566, 90 + 46 * n)
    for x, what in ((50, "input tile"), (220, "points"), (350, "weights"), (470, "GEMM"), (640, "outputs")):
        p.words(x, 248, what, 12, "middle")
    p.words(20, 280, "One GEMM per point: rows are tiles, depth is in-channels, columns are (phase, out-channel).", 12)
    p.save("winograd.svg")


def scatter():
    """Draw the overlap-add of the products of all taps."""
    p = Picture(760, 290)
    p.words(20, 24, "one row of pixels", 12)
    for i in range(5):
        p.box(20, 40 + 38 * i, 60, 32, f"x{i}", BLUE)
    p.words(150, 24, "products: one column per tap and out-channel (kernel 4, stride 2)", 12)
    for i in range(5):
        for t in range(4):
            p.box(150 + 74 * t, 40 + 38 * i, 68, 32, f"x{i} w{t}", (ORANGE, ORANGE, GREEN, GREEN)[t], 12)
        p.arrow(84, 56 + 38 * i, 146, 56 + 38 * i)
    p.words(540, 24, "outputs: overlap-add", 12)
    for j in range(5):
        p.box(540, 40 + 38 * j, 96, 32, f"y{2 * j}", GREY, 12)
        p.box(640, 40 + 38 * j, 96, 32, f"y{2 * j + 1}", GREY, 12)
    p.arrow(450, 132, 536, 132)
    p.words(20, 252, "Outputs 2j and 2j+1 sum the first two columns of pixel j and the last two of pixel j - 1:", 12)
    p.words(20, 270, "inputs are not gathered per tap, and the products of a row stay in the cache.", 12)
    p.save("scatter.svg")


def depthwise():
    """Draw an output row of ``depthwise`` with its vectors of channels."""
    p = Picture(760, 290)
    p.words(20, 24, "input row: pixels, channels contiguous", 12)
    for i in range(6):
        p.box(20 + 80 * i, 40, 74, 40, f"x[{i}]\nchannels", BLUE, 11)
    p.words(20, 116, "weights: one vector of channels per tap, kept in registers", 12)
    for t in range(3):
        p.box(20 + 80 * t, 132, 74, 32, f"w{t}", ORANGE)
    p.words(20, 200, "output row: one vector of accumulators per j", 12)
    for j in range(6):
        p.box(20 + 80 * j, 216, 74, 40, f"y[{j}]", GREEN)
    p.arrow(217, 82, 217, 128)
    p.arrow(217, 166, 217, 212)
    p.words(520, 60, "a pixel is loaded once for all", 12)
    p.words(520, 78, "taps and phases that read it", 12)
    p.words(520, 148, "channels fill the lanes;", 12)
    p.words(520, 166, "if channels are few,", 12)
    p.words(520, 184, "cells of several j do", 12)
    p.save("depthwise.svg")


def planes():
    """Draw a block of planes, and the GEMM with pixels as columns."""
    p = Picture(760, 300)
    p.words(20, 22, "by blocks: a block is transposed in cache, computed, and transposed back", 13)
    for n in range(3):
        p.box(20 + 12 * n, 44 + 12 * n, 120, 80, "", BLUE)
        p.box(20 + 12 * n, 64 + 12 * n, 120, 26, "block" if n == 2 else "", GREEN, 11)
        p.box(600 + 12 * n, 44 + 12 * n, 120, 80, "", GREY)
        p.box(600 + 12 * n, 64 + 12 * n, 120, 26, "block" if n == 2 else "", GREEN, 11)
    p.box(230, 76, 110, 44, "NXC, in cache", BLUE, 12)
    p.box(420, 76, 110, 44, "NXC, in cache", GREY, 12)
    p.arrow(170, 98, 226, 98)
    p.arrow(344, 98, 416, 98)
    p.arrow(534, 98, 596, 98)
    p.words(380, 62, "any algorithm", 12, "middle")
    p.words(20, 182, "turned: a GEMM that reads and writes planes", 13)
    p.box(20, 200, 130, 74, "A: weights\n(channel, phase)\nx depth", ORANGE, 12)
    p.words(168, 237, "x", 15, "middle")
    p.box(186, 200, 200, 74, "B: inputs, depth x pixels\ncopied along rows", BLUE, 12)
    p.arrow(392, 237, 436, 237)
    p.box(440, 200, 130, 74, "phases\nx pixels", GREY, 12)
    p.arrow(574, 237, 616, 237)
    p.box(620, 200, 124, 74, "interleaved\nrows of planes", GREEN, 12)
    p.save("planes.svg")


def rows():
    """Draw the vectors of pixels of ``rows``."""
    p = Picture(760, 270)
    p.words(20, 22, "an input row of a plane, with zeros at its ends", 13)
    for i in range(9):
        p.box(20 + 56 * i, 38, 50, 32, "0" if i in (0, 8) else f"x{i - 1}", GREY if i in (0, 8) else BLUE)
    p.box(76, 34, 222, 40, "", "none")
    p.box(20, 34, 222, 40, "", "none")
    p.words(560, 54, "two vectors, one pixel apart", 12)
    p.words(20, 104, "a broadcast weight times a vector; phases that read the same inputs share each load", 13)
    for n, (name, fill) in enumerate((("phase 0 += w2 x[j-1] + w0 x[j]", ORANGE), ("phase 1 += w3 x[j-1] + w1 x[j]", GREEN))):
        p.box(20, 120 + 40 * n, 330, 32, name, fill)
        for j in range(5):
            p.box(380 + 56 * j, 120 + 40 * n, 50, 32, f"y{2 * j + n}", fill)
    p.words(20, 222, "interleaved into the output row, with bias, activation and rounding", 13)
    for o in range(10):
        p.box(20 + 56 * o, 234, 50, 30, f"y{o}", (ORANGE, GREEN)[o % 2])
    p.save("rows.svg")


if __name__ == "__main__":
    for draw in (phases, flow, direct, winograd, scatter, depthwise, planes, rows):
        draw()
