"""What kernels make of a machine: the same on all machines. `python -m bench.calibrate` fits these numbers to measured times.

Each is the cost of one of what its comment says, in units of a constant of the machine: of a vector operation, of a call, of a
byte from a cache (costs.py says which unit each name of a count has).
"""

EFFICIENCIES = {
    "tile": 1.36,  # cycle that its ports need for a register tile: the peak over what is reached
    "amx_tile": 2.3,  # a product of AMX tiles: the peak over what is reached
    "accumulator": 2.44,  # vector of accumulators: its start and its store at each call
    "call": 0.128,  # call of a kernel: addresses, prefetches, loops that begin and end
    "weights_l2": 0.137,  # byte of packed weights that is read, of what L2 needs for it alone
    "weights_l3": 1.57,  # byte of packed weights that L2 does not hold, while tiles multiply
    "stall": 0.15,  # byte that L2 does not hold, though it is fetched ahead: what one waits for it
    "memory": 0.631,  # byte that the last-level cache does not hold, beyond what it costs there
    "move": 4.95,  # vector that is loaded, changed a little, and stored
    "collect": 8.1,  # vector of a channel's pixels that is copied beside those of other channels
    "rest": 12,  # what is left of a pixel beside whole vectors, that is copied
    "start": 3.59,  # run of neighbours: finding it and starting its loop
    "piece": 0.305,  # piece of a row, or of a vector, that is stored alone
    "source": 0.134,  # row that a tile reads or writes: its address
    "turn": 7.28,  # vector that is transposed between NCX and NXC
    "across_turn": 2.36,  # vector of one channel's pixels that is transposed for scatter
    "plane_in": 1.96,  # byte of input that L2 does not hold, in lines of many planes
    "plane_out": 2.68,  # byte of output that L2 does not hold, in lines of many planes
    "out_l3": 1.75,  # byte of output that L2 does not hold, by ordinary stores
    "out_non_temporal": 1.09,  # byte of output by non-temporal stores
    "out_split": 3,  # byte of output in cache lines that are stored in parts and lost in between
    "task": 4.74,  # task: starting it on a thread
    "setup": 5,  # one-shot call: setting up a transform of weights
    "zip": 8.36,  # vector of outputs that shuffles interleave
    "gather": 20.9,  # vector of outputs that a gather interleaves
    "transform_in": 9.26,  # vector of a transformed Winograd window
    "transform_point": 3.1,  # point of such a window
    "transform_out": 11.6,  # vector of products that is transformed back
    "wino_output": 0.537,  # output of a Winograd tile: addresses, bias, activation, store
    "overlap_term": 2.15,  # term that is added to an output of less than a vector
    "overlap_vector": 6.13,  # term that is added to a vector of outputs
    "overlap_out": 10.3,  # outputs of a position: bias, activation, store
    "dw": 0.747,  # multiply-add of a vector whose input is loaded for it alone
    "dw_gathered": 3.26,  # input vector that was gathered before and serves all phases
    "dw_store": 1.51,  # vector of outputs that depthwise stores
    "amx_pack": 36.9,  # step of depth of a row whose bfloat16 parts are made
    "amx_panel": 280,  # step of depth of a panel of inputs whose bfloat16 parts are made
    "pack_weights": 16.6,  # byte of a filter that is packed, of what a vector operation moves
    "pack_weights_new": 4.6,  # byte that is packed into new memory
    "pack_on_the_fly": 6,  # byte that a task packs just before it multiplies
}
