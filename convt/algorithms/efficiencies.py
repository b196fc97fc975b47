"""What kernels make of a machine: the same on all machines. `python -m bench.calibrate` fits these numbers to measured times.

Each is the cost of one of what its comment says, in units of a constant of the machine: of a vector operation, of a call, of a
byte from a cache (costs.py says which unit each name of a count has).
"""

EFFICIENCIES = {
    "tile": 1.15,  # cycle that its ports need for a register tile: the peak over what is reached
    "amx_tile": 1.9,  # a product of AMX tiles: the peak over what is reached
    "accumulator": 2.95,  # vector of accumulators: its start and its store at each call
    "call": 0.36,  # call of a kernel: addresses, prefetches, loops that begin and end
    "weights_l2": 0.05,  # byte of packed weights that is read, of what L2 needs for it alone
    "weights_l3": 1.08,  # byte of packed weights that L2 does not hold, while tiles multiply
    "weights_stall": 0.43,  # byte that L2 does not hold: what tiles wait for it
    "memory": 0.5,  # byte that the last-level cache does not hold, beyond what it costs there
    "move": 4.5,  # vector that is loaded, changed a little, and stored
    "collect": 9.8,  # vector of a channel's pixels that is copied beside those of other channels
    "rest": 24.8,  # what is left of a pixel beside whole vectors, that is copied
    "start": 4.5,  # run of neighbours: finding it and starting its loop
    "piece": 0.4,  # piece of a row, or of a vector, that is stored alone
    "source": 0.088,  # row that a tile reads or writes: its address
    "turn": 5.8,  # vector that is transposed between NCX and NXC
    "across_turn": 0.91,  # vector of one channel's pixels that is transposed for scatter
    "in_l3": 2.08,  # byte of input that L2 does not hold
    "out_l3": 1.6,  # byte of output that L2 does not hold, by ordinary stores
    "out_non_temporal": 1.28,  # byte of output by non-temporal stores
    "out_split": 5,  # byte of output in cache lines that are stored in parts and lost in between
    "task": 3,  # task: starting it on a thread
    "setup": 5,  # one-shot call: setting up a transform of weights
    "zip": 6.5,  # vector of outputs that shuffles interleave
    "gather": 21.4,  # vector of outputs that a gather interleaves
    "transform_in": 7.35,  # vector of a transformed Winograd window
    "transform_point": 4.8,  # point of such a window
    "transform_out": 18,  # vector of products that is transformed back
    "wino_output": 0.81,  # output of a Winograd tile: addresses, bias, activation, store
    "overlap_term": 3.6,  # term that is added to an output of less than a vector
    "overlap_vector": 5.7,  # term that is added to a vector of outputs
    "overlap_out": 8,  # outputs of a position: bias, activation, store
    "dw": 0.59,  # multiply-add of a vector whose input is loaded for it alone
    "dw_gathered": 3.6,  # input vector that was gathered before and serves all phases
    "dw_store": 1.57,  # vector of outputs that depthwise stores
    "dw_weight": 0.13,  # vector of weights that depthwise loads
    "amx_pack": 27,  # step of depth of a row whose bfloat16 parts are made
    "amx_panel": 280,  # step of depth of a panel of inputs whose bfloat16 parts are made
    "pack_weights": 16.6,  # byte of a filter that is packed, of what a vector operation moves
    "pack_weights_new": 4.6,  # byte that is packed into new memory
    "pack_on_the_fly": 6,  # byte that a task packs just before it multiplies
}
