"""Calls: arguments are checked and become a problem. The public functions and `ConvTranspose` are defined here.

Integrations call these functions. No module here knows an instruction set or a tile.

    api          checks, layouts and filter formats; one-shot calls
    operator     `ConvTranspose`
    stream       `Stream`, `stream_many`: data that arrives in chunks
    steps        the computation of a chunk
    onnx_rules   ONNX's attributes as convt's
    show         `show_config`
    worth        `Worth`: the share of transposed convolution in a whole model, and what convt changes
"""
