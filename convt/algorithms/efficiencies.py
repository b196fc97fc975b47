"""What kernels make of a machine: the same on all machines. `python -m bench.calibrate` fits these numbers to measured times.

Each is the cost of one of what its comment says, in units of a constant of the machine: of a vector operation, of a call, of a
byte from a cache (costs.py says which unit each name of a count has).
"""

EFFICIENCIES = {
    "tile": 1.24,  # cycle that its ports need for a register tile: the peak over what is reached
    "rows": 1.76,  # cycle that its ports need for a block of outputs in planes: the peak over what is reached
    "amx_tile": 2.1,  # a product of AMX tiles: the peak over what is reached
    "accumulator": 0.709,  # vector of accumulators: its start and its store at each call
    "call": 0.455,  # call of a kernel: addresses, prefetches, loops that begin and end
    "weights_l2": 0.189,  # byte of packed weights that is read, of what L2 needs for it alone
    "weights_l3": 1.63,  # byte of packed weights that L2 does not hold, while tiles multiply
    "stall": 0.256,  # byte that L2 does not hold, though it is fetched ahead: what one waits for it
    "memory": 0.627,  # byte of packed weights that comes from memory, beyond what it costs in the last-level cache
    "move": 9.65,  # vector that is loaded, changed a little, and stored
    "collect": 10,  # vector of a channel's pixels that is copied beside those of other channels
    "rest": 11.6,  # what is left of a pixel beside whole vectors, that is copied
    "start": 3.43,  # run of neighbours: finding it and starting its loop
    "piece": 0.465,  # piece of a row, or of a vector, that is stored alone
    "source": 0.17,  # row that a tile reads or writes: its address
    "turn": 3.9,  # vector that is transposed between NCX and NXC
    "across_turn": 6,  # vector of one channel's pixels that is transposed for scatter
    "plane_in": 1.44,  # byte of input that L2 does not hold, in lines of many planes
    "out_l3": 2,  # byte of output that L2 does not hold, by ordinary stores
    "out_non_temporal": 0.952,  # byte of output by non-temporal stores
    "out_split": 3,  # byte of output in cache lines that are stored in parts and lost in between
    "task": 44.1,  # task: starting it on a thread
    "setup": 4.5,  # one-shot call: setting up a transform of weights
    "zip": 8.58,  # vector of outputs that shuffles interleave
    "gather": 29.1,  # vector of outputs that a gather interleaves
    "transform_in": 6.17,  # vector of a transformed Winograd window
    "store": 6.4,  # vector that is stored from AMX accumulators; point of a Winograd window: its address and its store
    "transform_out": 11.7,  # vector of products that is transformed back
    "wino_output": 0.43,  # output of a Winograd tile: addresses, bias, activation, store
    "overlap_term": 3.77,  # term that is added to an output of less than a vector
    "overlap_vector": 14.2,  # term that is added to a vector of outputs
    "overlap_out": 24,  # outputs of a position: bias, activation, store
    "dw": 0.795,  # multiply-add of a vector whose input is loaded for it alone
    "dw_gathered": 1.76,  # input vector that was gathered before and serves all phases
    "dw_store": 1.04,  # vector of outputs that depthwise stores
    "amx_pack": 26,  # step of depth of a row whose bfloat16 parts are made
    "amx_panel": 320,  # step of depth of a panel of inputs whose bfloat16 parts are made
    "pack_weights": 21.7,  # byte of a filter that is packed, of what a vector operation moves
    "pack_weights_new": 5.5,  # byte that is packed into new memory
    "pack_on_the_fly": 8.2,  # byte that a task packs just before it multiplies
}
